package store

import (
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order, whoever dies: an image that was acknowledged, or that a node uses, keeps its packs, and
// in the end nothing is left but those.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		decisions := make([]byte, rapid.IntRange(1, 4000).Draw(rt, "decisions"))
		r := rand.New(rand.NewPCG(seed, 0))
		for i := range decisions {
			decisions[i] = byte(r.Uint32())
		}
		if violation, log := simulate(t, decisions); violation != "" {
			rt.Fatalf("%s\n%s", violation, strings.Join(log, "\n"))
		}
	})
}
