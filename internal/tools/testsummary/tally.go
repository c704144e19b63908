package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// counts are of tests that have no subtests of their own, so that a table counts
// by its rows.
type counts struct {
	Passed, Failed, Skipped int
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

func appendTally(file string, c counts) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, c.Passed, c.Failed, c.Skipped)
	return errors.Join(err, f.Close())
}

// total adds up what appendTally wrote.
func total(file string) (sum counts, err error) {
	f, err := os.Open(file)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		var c counts
		_, err := fmt.Fscanln(f, &c.Passed, &c.Failed, &c.Skipped)
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, fmt.Errorf("%s is not a tally: %w", file, err)
		}
		sum.Passed += c.Passed
		sum.Failed += c.Failed
		sum.Skipped += c.Skipped
	}
}
