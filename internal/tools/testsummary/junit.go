package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// suites is what of a JUnit report is read.
type suites struct {
	Suites []struct {
		Seconds float64 `xml:"time,attr"`
		Cases   []struct {
			Class   string    `xml:"classname,attr"`
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// junit counts a report, and adds up the time that the tests took. The failures
// have been shown by who wrote it.
func junit(file string, stdout io.Writer) (c counts, took time.Duration, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return c, 0, err
	}
	var s suites
	if err := xml.Unmarshal(b, &s); err != nil {
		return c, 0, fmt.Errorf("%s: %w", file, err)
	}
	for _, suite := range s.Suites {
		took += time.Duration(suite.Seconds * float64(time.Second))
		for _, t := range suite.Cases {
			switch {
			case t.Failure != nil || t.Error != nil:
				c.Failed++
			case t.Skipped != nil:
				c.Skipped++
				message, _, _ := strings.Cut(t.Skipped.Message, "\n")
				_, _ = fmt.Fprintf(stdout, "        skipped: %s.%s: %s\n", t.Class, t.Name, message)
			default:
				c.Passed++
			}
		}
	}
	return c, took, nil
}
