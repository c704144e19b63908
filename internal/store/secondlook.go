package store

import (
	"context"
	"errors"

	"brisk.dev/brisk/internal/fault"
)

// secondLook reads again what seems to be damaged. One broken answer, cut off or
// the answer to another question, must not convict what is stored: a conviction is
// remembered, and makes every later reader suffer. What lies on a bad disk reads badly twice.
func (s *Store) secondLook(ctx context.Context, read func() error) error {
	err := read()
	if !fault.Is(err, fault.Corrupt) || errors.Is(err, errGone) || ctx.Err() != nil {
		return err
	}
	again := read()
	if again == nil {
		s.counters.brokenAnswers.Add(1)
		s.log.Warn("what came from the origin was damaged on its way", "err", err)
	}
	return again
}
