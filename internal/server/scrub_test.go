package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"brisk.dev/brisk/internal/store/slab"
)

func TestScrubWait(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name         string
		began, ended time.Time
		want         time.Duration
	}{
		{"never", time.Time{}, time.Time{}, time.Minute},
		{"broken off", now.Add(-48 * time.Hour), time.Time{}, time.Minute},
		{"broken off, not the first", now.Add(-time.Hour), now.Add(-30 * time.Hour), time.Minute},
		{"just done", time.Time{}, now, 24 * time.Hour},
		{"done in the morning", time.Time{}, now.Add(-10 * time.Hour), 14 * time.Hour},
		{"long ago", time.Time{}, now.Add(-1000 * time.Hour), time.Minute},
		{"in the future", time.Time{}, now.Add(1000 * time.Hour), 24 * time.Hour},
	} {
		assert.Equal(t, c.want, scrubWait(slab.Coverage{Began: c.began, Ended: c.ended}, now), c.name)
	}
}
