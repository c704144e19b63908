// Command reader prints the SHA-256 of each file that it is given.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

func main() {
	for _, name := range os.Args[1:] {
		f, err := os.Open(name)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Printf("%x\n", h.Sum(nil))
	}
}
