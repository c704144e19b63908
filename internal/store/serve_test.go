package store_test

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

// peers are the machines of a cluster that serve each other in one process.
type peers struct {
	mu        sync.Mutex
	machines  []*store.Store
	announced map[store.Digest]bool
	change    func([]byte) []byte // what comes of an answer on the way
	err       error
	refused   int
	said      chan store.Digest // gets what is announced; nil: nobody asks
}

func (p *peers) Fetch(ctx context.Context, workspace string, name store.Digest, accept func([]byte) error) error {
	if p.err != nil {
		return p.err
	}
	for _, m := range p.machines {
		answer, err := m.Serve(ctx, name)
		if err != nil {
			continue
		}
		if p.change != nil {
			answer = p.change(answer)
		}
		if err := accept(answer); err == nil {
			return nil
		}
		p.refused++
	}
	return fault.New(fault.NotFound, "nobody has it")
}

func (p *peers) Announce(workspace string, name store.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announced[name] = true
	if p.said != nil {
		p.said <- name
	}
}

func TestPeers(t *testing.T) {
	both(t, func(t *testing.T, o store.Options) {
		f := &storetest.Faults{Origin: storetest.NewMemOrigin()}
		p := &peers{announced: map[store.Digest]bool{}, said: make(chan store.Digest, 1)}
		o.Origin, o.Peers = f, p
		open := func() (*store.Store, *storetest.MemCache) {
			o, cache := o, storetest.NewMemCache()
			o.Dir, o.Cache = t.TempDir(), cache
			return storetest.With(t, o), cache
		}
		one, _ := open()
		pieces := [][]byte{bytes.Repeat([]byte("text "), 9000), storetest.Data(2, 3000)}
		chunks, w := storetest.Commit(t, one, pieces...)
		r := one.Reader(w.Packs, chunks)
		for i, c := range chunks {
			dst := make([]byte, c.Size)
			if tier, err := r.ReadChunk(t.Context(), c, dst); err != nil || tier != store.FromOrigin || !bytes.Equal(dst, pieces[i]) {
				t.Fatal(tier, err)
			}
			if name := <-p.said; name != o.Keys.Name(c.Digest) {
				t.Fatal("another is announced")
			}
		}
		p.said = nil
		p.machines = []*store.Store{one}

		// Another machine reads from the first, and asks the origin nothing at all.
		two, _ := open()
		before := len(f.Ops())
		r = two.Reader(w.Packs, chunks)
		for i, c := range chunks {
			for _, want := range []store.Tier{store.FromPeer, store.FromCache} {
				dst := make([]byte, c.Size)
				if tier, err := r.ReadChunk(t.Context(), c, dst); err != nil || tier != want || !bytes.Equal(dst, pieces[i]) {
					t.Fatal(tier, err)
				}
			}
		}
		if n := len(f.Ops()) - before; n != 0 {
			t.Fatalf("%d operations on the origin", n)
		}
		if st := two.Stats(); st.PeerReads != 2 || st.PeerBytes != 48_000 || st.OriginReads != 0 || one.Stats().Served != 2 {
			t.Fatalf("%+v, %+v", st, one.Stats())
		}

		// One that lies is found out, and the origin asked.
		for name, change := range map[string]func([]byte) []byte{
			"a bit":     func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			"a version": func(b []byte) []byte { b[0]++; return b },
			"a flag":    func(b []byte) []byte { b[1] ^= 1; return b },
			"an epoch":  func(b []byte) []byte { b[4] ^= 1; return b },
			"cut":       func(b []byte) []byte { return b[:len(b)-1] },
			"empty":     func([]byte) []byte { return nil },
			"long":      func(b []byte) []byte { return append(b, make([]byte, store.MaxAnswer)...) },
			"another":   func([]byte) []byte { b, _ := one.Serve(t.Context(), o.Keys.Name(chunks[1].Digest)); return b },
		} {
			t.Run(name, func(t *testing.T) {
				p.change, p.refused = change, 0
				defer func() { p.change = nil }()
				s, _ := open()
				dst := make([]byte, chunks[0].Size)
				if tier, err := s.Reader(w.Packs, chunks).ReadChunk(t.Context(), chunks[0], dst); err != nil || tier != store.FromOrigin || !bytes.Equal(dst, pieces[0]) {
					t.Fatal(tier, err)
				}
				if p.refused != 1 || s.Stats().DamagedAnswers != 1 {
					t.Fatalf("%d refused, %+v", p.refused, s.Stats())
				}
			})
		}

		// Peers that fail otherwise cost nothing but their time.
		p.err = fault.New(fault.Unavailable, "no route")
		s, _ := open()
		dst := make([]byte, chunks[0].Size)
		if tier, err := s.Reader(w.Packs, chunks).ReadChunk(t.Context(), chunks[0], dst); err != nil || tier != store.FromOrigin {
			t.Fatal(tier, err)
		}
		if s.Stats().PeerFailures != 1 {
			t.Fatalf("%+v", s.Stats())
		}
	})
}

func keysIn(t *testing.T, w *store.Workspaces, workspace string) *seal.Keys {
	t.Helper()
	k, err := w.Keys(workspace)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What is served: chunks that this workspace has opened or read here, under their keyed
// names, from the cache, and sealed.
func TestServe(t *testing.T) {
	p := &peers{announced: map[store.Digest]bool{}}
	cache := storetest.NewMemCache()
	m := storetest.NewMemOrigin()
	w := storetest.Workspaces(t, store.WorkspacesOptions{Origin: m, Cache: cache, Peers: p})
	a, b := storetest.Store(t, w, "a"), storetest.Store(t, w, "b")
	data := bytes.Repeat([]byte("secret "), 1000)
	chunks, written := storetest.Commit(t, a, data)
	name := store.Digest(keysIn(t, w, "a").Name(chunks[0].Digest))

	_, err := a.Serve(t.Context(), name)
	wantClass(t, err, fault.NotFound) // not in the cache
	if _, err := a.Reader(written.Packs, chunks).ReadChunk(t.Context(), chunks[0], make([]byte, len(data))); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return cache.Has(chunks[0].Digest) })
	answer, err := a.Serve(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range [][]byte{[]byte("secret"), chunks[0].Digest[:8], name[:8]} {
		if bytes.Contains(answer, form) {
			t.Fatalf("%q is in the answer", form)
		}
	}
	for _, wrong := range []store.Digest{chunks[0].Digest, {}, keysIn(t, w, "b").Name(chunks[0].Digest)} {
		_, err := a.Serve(t.Context(), wrong)
		wantClass(t, err, fault.NotFound)
		_, err = b.Serve(t.Context(), wrong)
		wantClass(t, err, fault.NotFound)
	}
	cache.Clear()
	_, err = a.Serve(t.Context(), name)
	wantClass(t, err, fault.NotFound)

	// After a restart, an image that is opened is served from the cache.
	if err := cache.Write(chunks[0], data); err != nil {
		t.Fatal(err)
	}
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: m, Cache: cache, Keys: keysIn(t, w, "a"), Peers: p})
	_, err = s.Serve(t.Context(), name)
	wantClass(t, err, fault.NotFound)
	s.Reader(written.Packs, chunks)
	until(func() bool { _, err := s.Serve(t.Context(), name); return err == nil })
}
