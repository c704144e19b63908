// Command wait says that it waits, and does.
package main

import (
	"fmt"
	"time"
)

func main() {
	fmt.Println("waiting")
	time.Sleep(time.Hour)
}
