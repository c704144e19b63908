package store_test

import (
	"testing"

	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(t *testing.T) store.Origin {
		o, err := store.OpenDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return o
	})
}
