package s3_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store/s3/s3test"
)

// BenchmarkFirstTouch gives the medians of first touches of missing chunks, with the origin on this
// machine, and of bare HTTP range reads in between, in microseconds, and their ratio.
func BenchmarkFirstTouch(b *testing.B) {
	s3test.Setenv(b)
	server := s3test.Start(b)
	for b.Loop() {
		touches, err := server.FirstTouches(b.Context(), b.TempDir(), 400)
		require.NoError(b, err)
		median := func(of func(s3test.Touch) time.Duration) float64 {
			var l []time.Duration
			for _, t := range touches {
				l = append(l, of(t))
			}
			slices.Sort(l)
			return float64(l[len(l)/2].Microseconds())
		}
		chunk := median(func(t s3test.Touch) time.Duration { return t.Chunk })
		bare := median(func(t s3test.Touch) time.Duration { return t.Bare })
		b.ReportMetric(chunk, "chunk-us")
		b.ReportMetric(bare, "bare-us")
		b.ReportMetric(chunk/bare, "ratio")
	}
}

func TestFirstTouches(t *testing.T) {
	s3test.Setenv(t)
	touches, err := s3test.Start(t).FirstTouches(t.Context(), t.TempDir(), 10)
	require.NoError(t, err)
	require.Len(t, touches, 10)
}
