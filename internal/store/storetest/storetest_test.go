package storetest_test

import (
	"testing"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMemOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(*testing.T) store.Origin { return storetest.NewMemOrigin() })
}

func TestFaultsPassThrough(t *testing.T) {
	storetest.TestOrigin(t, func(*testing.T) store.Origin { return &storetest.Faults{Origin: storetest.NewMemOrigin()} })
}

func TestMemCache(t *testing.T) {
	storetest.TestCache(t, func(*testing.T) store.Cache { return storetest.NewMemCache() })
}
