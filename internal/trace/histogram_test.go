package trace

import (
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-time.Second, time.Millisecond, 2 * time.Millisecond, 400 * time.Second} {
		h.Observe(d)
	}
	got := h.Read()
	want := Distribution{Count: 4, Sum: 400.003}
	for i := range want.Buckets {
		want.Buckets[i] = 3
	}
	want.Buckets[0] = 2 // at most a millisecond: what is exactly one is
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got.Add(want)
	if got.Count != 8 || got.Sum != 800.006 || got.Buckets[0] != 4 || got.Buckets[15] != 6 {
		t.Errorf("twice: %+v", got)
	}
}
