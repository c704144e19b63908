package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// The simulation: importers, nodes, removers and collectors run the real protocol over
// an origin in memory, in the fake time of a synctest bubble. Each operation of
// theirs on the origin waits until the driver lets it happen, in the order that a
// list of decisions gives: also never, with an answer that is lost, late, or
// with the process dying before or after it.

const (
	simGrace    = time.Hour
	simPatience = 5 * time.Minute // an operation of who is not suspended takes no longer
)

var errDied = errors.New("the process died")

// sim is one run.
type sim struct {
	t         *testing.T
	decisions []byte
	ctx       context.Context

	mu        sync.Mutex
	objects   map[string]*simObject
	versions  int
	pending   []*simOp
	late      []*simOp       // answered with an error, and still to be carried out
	manifests map[string]int // acknowledged: name to the version
	actors    []*simActor
	machines  []*simMachine
	count     int
	logging   sync.Mutex
	log       []string
	violation string
}

type simObject struct {
	data     []byte
	version  int
	modified time.Time
}

// simMachine is what processes on one machine share: what they know to be at the origin.
type simMachine struct {
	mu     sync.Mutex
	index  map[string]string // key of a pack to its content
	listed time.Time
}

// packs is a copy of what the machine knows.
func (m *simMachine) packs() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.index)
}

func (m *simMachine) knownSince() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listed
}

func (m *simMachine) learn(key, content string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index[key] = content
}

type simActor struct {
	s           *sim
	name        string
	suspendable bool // its machine may sleep for any time
	dead, done  bool
}

type simOp struct {
	actor   *simActor
	name    string
	issued  time.Time
	do      func() error
	verdict chan error
}

func (s *sim) next(n int) int {
	if len(s.decisions) == 0 {
		return 0
	}
	d := int(s.decisions[0])
	s.decisions = s.decisions[1:]
	return d % n
}

func (s *sim) say(format string, args ...any) {
	s.logging.Lock()
	defer s.logging.Unlock()
	s.log = append(s.log, time.Now().Format("02 15:04:05 ")+fmt.Sprintf(format, args...))
}

func (s *sim) violate(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
		s.say("VIOLATION: %s", s.violation)
	}
}

// clock is the origin's: its front ends are up to 25 s apart.
func (s *sim) clock() time.Time {
	return time.Now().Add(time.Duration(s.next(51)-25) * time.Second).Truncate(time.Second)
}

// op waits for the driver.
func (a *simActor) op(ctx context.Context, name string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, name, "")
	}
	op := &simOp{actor: a, name: name, issued: time.Now(), do: do, verdict: make(chan error)}
	a.s.mu.Lock()
	if a.dead {
		a.s.mu.Unlock()
		return errDied
	}
	a.s.pending = append(a.s.pending, op)
	a.s.mu.Unlock()
	return <-op.verdict
}

func (a *simActor) Get(ctx context.Context, key string, _ int64) (data []byte, v Version, err error) {
	err = a.op(ctx, "get "+key, func() error {
		o := a.s.objects[key]
		if o == nil {
			return fault.New(fault.NotFound, "no %s", key)
		}
		data, v = o.data, simVersion(o)
		return nil
	})
	return data, v, err
}

func (a *simActor) Swap(ctx context.Context, key string, old Version, data []byte) (v Version, err error) {
	err = a.op(ctx, "swap "+key, func() error {
		o := a.s.objects[key]
		if o == nil && old != "" || o != nil && simVersion(o) != old {
			return fault.New(fault.Exists, "%s has changed", key)
		}
		a.s.write(key, data)
		v = simVersion(a.s.objects[key])
		return nil
	})
	return v, err
}

// simVersion is a function of the content, as it is with most buckets.
func simVersion(o *simObject) Version { return Version(Sum(o.data).Short()) }

func (s *sim) write(key string, data []byte) int {
	s.versions++
	s.objects[key] = &simObject{data, s.versions, s.clock()}
	return s.versions
}

func (a *simActor) List(ctx context.Context, prefix string, fn func(Object) error) error {
	var found []Object
	err := a.op(ctx, "list "+prefix, func() error {
		for _, key := range slices.Sorted(maps.Keys(a.s.objects)) {
			if o := a.s.objects[key]; strings.HasPrefix(key, prefix) {
				found = append(found, Object{key, int64(len(o.data)), o.modified})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range found {
		if err := fn(o); err != nil {
			return err
		}
	}
	return nil
}

func (a *simActor) Size(ctx context.Context, key string) (n int64, err error) {
	b, _, err := a.Get(ctx, key, 0)
	return int64(len(b)), err
}

func (a *simActor) Delete(ctx context.Context, key string) error {
	return a.op(ctx, "delete "+key, func() error {
		delete(a.s.objects, key)
		return nil
	})
}

// put is Origin.Put: what exists stays.
func (a *simActor) put(ctx context.Context, key string, data []byte) error {
	return a.op(ctx, "put "+key, func() error {
		if a.s.objects[key] == nil {
			a.s.write(key, data)
		}
		return nil
	})
}

func (s *sim) spawn(kind string, suspendable bool, fn func(a *simActor)) {
	s.count++
	a := &simActor{s: s, name: fmt.Sprint(kind, s.count), suspendable: suspendable}
	s.actors = append(s.actors, a)
	s.say("%s begins", a.name)
	go func() {
		fn(a)
		s.mu.Lock()
		a.done = true
		s.mu.Unlock()
	}()
}

func (a *simActor) ledger() *ledger { return &ledger{a, originTimes} }

func (a *simActor) isDead() bool {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.dead
}

// renewing keeps a lease alive until stop is called.
func (a *simActor) renewing(h *lease) (stop func()) {
	ctx, cancel := context.WithCancel(a.s.ctx)
	go func() {
		for {
			select {
			case <-time.After(originTimes.renewal()):
			case <-ctx.Done():
				return
			}
			_ = h.renew(ctx)
			if a.isDead() {
				return
			}
		}
	}()
	return cancel
}

type simManifest struct{ Packs []string }

// runImporter imports an image of some contents, as a Store does it.
func (a *simActor) runImporter(m *simMachine, name string, contents []string, pause time.Duration) {
	ctx := a.s.ctx
	h, err := a.ledger().work(ctx)
	if err != nil {
		return
	}
	defer a.renewing(h)()
	if time.Since(m.knownSince()) > originTimes.staleAfter() {
		index, began := map[string]string{}, time.Now()
		if err := a.List(ctx, "packs/", func(o Object) error {
			index[o.Key] = strings.SplitN(o.Key, "/", 3)[1]
			return nil
		}); err != nil {
			return
		}
		m.mu.Lock()
		m.index, m.listed = index, began
		m.mu.Unlock()
	}
	var packs []string
	for _, c := range contents {
		key, err := a.store(ctx, h, m, c)
		if err != nil {
			return
		}
		packs = append(packs, key)
		select { // the import goes on
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	version := 0
	data, _ := json.Marshal(simManifest{packs})
	record := "records/" + name
	err = h.commit(ctx, packs, func() error {
		return a.op(ctx, "write "+record+" "+string(data), func() error {
			delete(a.s.manifests, name) // its content is another's now
			version = a.s.write(record, data)
			return nil
		})
	}, func() error {
		return a.op(ctx, "undo "+record, func() error {
			if o := a.s.objects[record]; o != nil && o.version == version {
				delete(a.s.objects, record)
			}
			return nil
		})
	})
	if err != nil || a.isDead() {
		a.s.say("%s fails: %v", a.name, err)
		return
	}
	a.s.mu.Lock()
	if o := a.s.objects[record]; o != nil && o.version == version {
		a.s.manifests[name] = version
		a.s.say("%s has imported %s", a.name, name)
	}
	a.s.mu.Unlock()
	h.release(ctx)
}

// store makes sure that a pack with this content exists, and gives its key.
func (a *simActor) store(ctx context.Context, h *lease, m *simMachine, content string) (string, error) {
	index := m.packs()
	for _, key := range slices.Sorted(maps.Keys(index)) {
		if index[key] != content {
			continue
		}
		if ok, err := h.rely(ctx, key); ok || err != nil {
			return key, err
		}
	}
	for salt := 0; ; salt++ {
		key := fmt.Sprintf("packs/%s/%d", content, salt)
		if ok, err := h.rely(ctx, key); err != nil {
			return "", err
		} else if !ok {
			continue
		}
		if err := a.put(ctx, key, []byte(content)); err != nil {
			return "", err
		}
		m.learn(key, content)
		return key, nil
	}
}

func (a *simActor) manifest(ctx context.Context, name string) (m simManifest, version int, err error) {
	err = a.op(ctx, "get records/"+name, func() error {
		o := a.s.objects["records/"+name]
		if o == nil {
			return fault.New(fault.NotFound, "no %s", name)
		}
		version = o.version
		return json.Unmarshal(o.data, &m)
	})
	return m, version, err
}

// runRemover removes an image.
func (a *simActor) runRemover(name string) {
	ctx, cancel := context.WithTimeout(a.s.ctx, simPatience)
	defer cancel()
	m, _, err := a.manifest(ctx, name)
	if err != nil {
		return
	}
	if _, err := a.ledger().reprieve(ctx, m.Packs...); err != nil {
		return
	}
	_ = a.op(ctx, "remove records/"+name, func() error {
		delete(a.s.manifests, name)
		delete(a.s.objects, "records/"+name)
		return nil
	})
}

// runNode mounts an image at once, and only then says so; and reads it, some of it late.
func (a *simActor) runNode(name string, reads int) {
	began := time.Now()
	m, version, err := a.manifest(a.s.ctx, name)
	if err != nil {
		return
	}
	a.s.mu.Lock()
	sound := a.s.manifests[name] == version
	a.s.mu.Unlock()
	if !sound { // not acknowledged: no promise
		return
	}
	ctx, cancel := context.WithTimeout(a.s.ctx, simPatience)
	defer cancel()
	var h *lease
	for h == nil {
		h, _ = a.ledger().use(ctx, m.Packs) // it is tried until it is too late
		if ctx.Err() != nil || a.isDead() {
			return
		}
	}
	if time.Since(began) > 2*simPatience {
		return
	}
	defer a.renewing(h)()
	for range reads {
		for _, key := range m.Packs {
			_ = a.op(a.s.ctx, "read "+key, func() error {
				// What counts is whether the others take it for alive.
				o := a.s.objects[h.key]
				if o == nil || time.Since(o.modified) > originTimes.lease {
					return nil
				}
				if l, _ := decodeLease(o.data); !l.Broken && a.s.objects[key] == nil {
					a.s.violate("%s misses %s of %s, which is in use", a.name, key, name)
				}
				return nil
			})
		}
		select {
		case <-time.After(3 * time.Hour):
		case <-a.s.ctx.Done():
			return
		}
	}
	h.release(a.s.ctx)
}

// collect is one pass; what is needed is what records name.
func (a *simActor) collect(grace time.Duration, dry bool) (passed, error) {
	p := &pass{
		l: a.ledger(), grace: grace, dry: dry,
		objects: func(ctx context.Context) (map[string]int64, error) {
			found := map[string]int64{}
			return found, a.List(ctx, "packs/", func(o Object) error {
				found[o.Key] = o.Size
				return nil
			})
		},
		needed: func(ctx context.Context) (func(string) bool, error) {
			var names []string
			if err := a.List(ctx, "records/", func(o Object) error {
				names = append(names, strings.TrimPrefix(o.Key, "records/"))
				return nil
			}); err != nil {
				return nil, err
			}
			set := map[string]bool{}
			for _, n := range names {
				m, _, err := a.manifest(ctx, n)
				if err != nil && !fault.Is(err, fault.NotFound) {
					return nil, err
				}
				for _, k := range m.Packs {
					set[k] = true
				}
			}
			return func(k string) bool { return set[k] }, nil
		},
		remove: func(ctx context.Context, keys []string) error {
			for _, k := range keys {
				if err := a.Delete(ctx, k); err != nil {
					return err
				}
			}
			return nil
		},
	}
	return p.run(a.s.ctx)
}

// check looks for what must never be.
func (s *sim) check() {
	for name, version := range s.manifests {
		o := s.objects["records/"+name]
		if o == nil || o.version != version {
			s.violate("the image %s, which was acknowledged, is gone", name)
			return
		}
		var m simManifest
		_ = json.Unmarshal(o.data, &m)
		for _, k := range m.Packs {
			if s.objects[k] == nil {
				s.violate("%s, of the image %s, is gone", k, name)
			}
		}
	}
}

// waiting is the operations that nobody has decided upon.
func (s *sim) waiting() []*simOp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pending)
}

// finish lets one operation happen, in the way that fate says.
func (s *sim) finish(op *simOp, fate int) {
	s.mu.Lock()
	s.pending = slices.DeleteFunc(s.pending, func(p *simOp) bool { return p == op })
	if op.actor.dead {
		s.mu.Unlock()
		op.verdict <- errDied
		return
	}
	lost := fault.New(fault.Unavailable, "no answer")
	var answer error
	switch fate {
	default:
		answer = op.do()
		s.say("%s: %s: %v", op.actor.name, op.name, answer)
	case 1:
		answer = lost
		s.say("%s: %s does not arrive", op.actor.name, op.name)
	case 2:
		_ = op.do()
		answer = lost
		s.say("%s: %s: the answer is lost", op.actor.name, op.name)
	case 3:
		s.late = append(s.late, op)
		answer = lost
		s.say("%s: %s is late", op.actor.name, op.name)
	case 4:
		op.actor.dead = true
		answer = errDied
		s.say("%s dies before %s", op.actor.name, op.name)
	case 5:
		_ = op.do()
		op.actor.dead = true
		answer = errDied
		s.say("%s dies after %s", op.actor.name, op.name)
	}
	s.check()
	s.mu.Unlock()
	op.verdict <- answer
	synctest.Wait()
}

// arrive carries out what is late.
func (s *sim) arrive(i int) {
	op := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	s.mu.Lock()
	_ = op.do()
	s.say("%s: %s arrives", op.actor.name, op.name)
	s.check()
	s.mu.Unlock()
}

// pass lets time go by, in which nobody but who is suspended waits for longer than simPatience.
func (s *sim) sleep(d time.Duration) {
	until := time.Now().Add(d)
	patience := time.Duration(s.next(6)) * time.Minute
	for time.Now().Before(until) {
		synctest.Wait()
		for i := 0; i < len(s.late); {
			if time.Since(s.late[i].issued) >= simPatience {
				s.arrive(i)
			} else {
				i++
			}
		}
		waiting := s.waiting()
		due := slices.IndexFunc(waiting, func(op *simOp) bool {
			return !op.actor.suspendable && time.Since(op.issued) >= patience
		})
		if due >= 0 {
			s.finish(waiting[due], 0)
			continue
		}
		time.Sleep(min(time.Until(until), time.Minute))
	}
	synctest.Wait()
}

var simPauses = []time.Duration{time.Second, 30 * time.Second, 3 * time.Minute, 12 * time.Minute, 50 * time.Minute, 90 * time.Minute, 5 * time.Hour, 26 * time.Hour}

// step makes one decision.
func (s *sim) step() {
	synctest.Wait()
	waiting := s.waiting()
	switch choice := s.next(64); {
	case len(waiting) == 0 && choice < 40 || choice >= 62:
		s.begin()
	case choice < 8 && len(waiting) > 0:
		// One of them is quick, and the others see nothing of the middle.
		a := waiting[s.next(len(waiting))].actor
		for range 60 {
			i := slices.IndexFunc(waiting, func(op *simOp) bool { return op.actor == a })
			if i < 0 {
				break
			}
			s.finish(waiting[i], 0)
			waiting = s.waiting()
		}
	case choice < 58 && len(waiting) > 0:
		fate := 0
		if f := s.next(100); f < 6 {
			fate = f
		}
		s.finish(waiting[s.next(len(waiting))], fate)
	case choice == 58 && len(s.late) > 0:
		s.arrive(s.next(len(s.late)))
	default:
		d := simPauses[s.next(len(simPauses))]
		s.say("%v pass", d)
		s.sleep(d)
		for range s.next(3) {
			s.beginCollector()
		}
	}
}

func (s *sim) beginCollector() {
	s.spawn("collector", false, func(a *simActor) { _, _ = a.collect(simGrace, false) })
}

// begin starts somebody.
func (s *sim) begin() {
	name := fmt.Sprint("image", s.next(3))
	switch s.next(7) {
	case 0, 1:
		var contents []string
		for bits := s.next(15) + 1; bits > 0; bits &= bits - 1 {
			contents = append(contents, string("abcd"[trailing(bits)]))
		}
		m := s.machines[s.next(len(s.machines))]
		pause := simPauses[s.next(len(simPauses))]
		s.spawn("importer", s.next(3) == 0, func(a *simActor) { a.runImporter(m, name, contents, pause) })
	case 2:
		s.spawn("remover", false, func(a *simActor) { a.runRemover(name) })
	case 3, 4:
		reads := s.next(4) + 1
		s.spawn("node", false, func(a *simActor) { a.runNode(name, reads) })
	default:
		s.beginCollector()
	}
}

func trailing(bits int) (n int) {
	for ; bits&1 == 0; bits >>= 1 {
		n++
	}
	return n
}

// simulate runs the decisions and then, with everybody gone, collects until nothing is left
// to be. It returns what is wrong, and what happened.
func simulate(t *testing.T, decisions []byte) (violation string, log []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &sim{t: t, decisions: decisions, ctx: ctx, objects: map[string]*simObject{}, manifests: map[string]int{}}
		for range 2 {
			s.machines = append(s.machines, &simMachine{index: map[string]string{}})
		}
		for len(s.decisions) > 0 && s.violation == "" {
			s.step()
		}
		s.settle()
		cancel()
		synctest.Wait()
		for _, op := range s.waiting() {
			op.verdict <- errDied
		}
		violation, log = s.violation, s.log
	})
	return violation, log
}

// settle ends everybody and collects.
func (s *sim) settle() {
	s.mu.Lock()
	for _, a := range s.actors {
		a.dead = true
	}
	s.mu.Unlock()
	for l := s.waiting(); len(l) > 0; l = s.waiting() {
		s.finish(l[0], 0)
	}
	for len(s.late) > 0 {
		s.arrive(0)
	}
	s.say("everybody is gone")
	for range 5 {
		s.spawn("collector", false, func(a *simActor) {
			if _, err := a.collect(simGrace, false); err != nil {
				s.violate("collecting fails: %v", err)
			}
		})
		for synctest.Wait(); len(s.waiting()) > 0; synctest.Wait() {
			s.finish(s.waiting()[0], 0)
		}
		s.sleep(26 * time.Hour)
	}
	needed := map[string]bool{}
	for key, o := range s.objects {
		var m simManifest
		if strings.HasPrefix(key, "records/") && json.Unmarshal(o.data, &m) == nil {
			for _, k := range m.Packs {
				needed[k] = true
			}
		}
	}
	for key := range s.objects {
		if strings.HasPrefix(key, "packs/") && !needed[key] || strings.HasPrefix(key, leasePrefix) || strings.HasPrefix(key, sentencePrefix) {
			s.violate("%s is left over", key)
		}
	}
}
