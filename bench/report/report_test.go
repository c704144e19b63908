package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPaired(t *testing.T) {
	r := Paired("numpy", "warm", "bare", []float64{50, 60, 90}, []float64{100, 100, 100}, 0.7)
	require.Equal(t, Spread{Median: 60, Min: 50, Max: 90}, *r.MS)
	require.Equal(t, Spread{Median: 0.6, Min: 0.5, Max: 0.9}, *r.Ratio)
	require.True(t, *r.Met)
	require.False(t, *Paired("numpy", "warm", "bare", []float64{80}, []float64{100}, 0.7).Met)
}

func TestMedianOfAnEvenNumber(t *testing.T) {
	require.Equal(t, Spread{Median: 2.5, Min: 1, Max: 4}, Of([]float64{4, 1, 3, 2}))
}

func TestSaveMerges(t *testing.T) {
	dir := t.TempDir()
	first := &Report{Machine: "m", Rows: []Row{Value("a", "", 1, 1, "MB", 0), Value("b", "", 1, 2, "MB", 0)}}
	require.NoError(t, first.Save(dir, "x", true))
	second := &Report{Machine: "n", Rows: []Row{Value("c", "", 1, 3, "MB", 0), Value("a", "", 1, 4, "MB", 0)}}
	require.NoError(t, second.Save(dir, "x", true))
	b, err := os.ReadFile(filepath.Join(dir, "x.json"))
	require.NoError(t, err)
	var got Report
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, Report{Machine: "n", Rows: []Row{Value("a", "", 1, 4, "MB", 0), Value("b", "", 1, 2, "MB", 0), Value("c", "", 1, 3, "MB", 0)}}, got)
}

func TestPrint(t *testing.T) {
	var b bytes.Buffer
	rep := &Report{Machine: "m", Kernel: "k", Load: "0 0 0", Rows: []Row{Value("idle", "", 1, 120, "MB", 100)}}
	require.NoError(t, rep.Print(&b))
	require.Contains(t, b.String(), "120 MB")
	require.Contains(t, b.String(), "NO")
}
