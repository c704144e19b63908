package metrics

import (
	"time"

	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store/peer"
	"brisk.dev/brisk/internal/trace"
)

// chapters are all metrics, in the order of the page.
var chapters = []chapter{
	{"The machine", "", []family{
		{name: "brisk_info", kind: gauge, help: "Always 1; the label says which Brisk it is", labels: []label{{"version", nil}},
			read: func(r *Reading, put put) { put(1, r.Version) }},
		{name: "brisk_disk_free_bytes", kind: gauge, help: "What is free where the data directory lies",
			read: func(r *Reading, put put) { put(float64(r.DiskFree)) }},
	}},
	{"The cache", "Chunks of images on this machine: the slab.", cacheFamilies},
	{"Scrubbing", "Reading the cache from the disk, past the page cache, to find what has rotted.", scrubFamilies},
	{"Reads", "What was read of images through Brisk. Natively mounted images read past it, and are not counted.", readFamilies},
	{"The store over a network", "Only if the store is a bucket.", originFamilies},
	{"Other machines", "Only in a cluster. `brisk node ls` has the same by machine.", peerFamilies},
	{"Profiles and fetching ahead", "What starts read, and what of it was brought before they asked.", profileFamilies},
	{"Mounted images", "", mountFamilies},
	{"Garbage", "", garbageFamilies},
	{"Calls and instances", "How an instance starts: `restored`, from a snapshot into a sandbox that was created beforehand; `restored-fresh`, " +
		"from a snapshot into a new sandbox; `cold`, without a snapshot; `fallback`, without, after a restore had failed. A `warm` call found an " +
		"instance that had served others. `brisk calls show` has the same for one call.", callFamilies},
}

// num makes a family of one number.
func num(k kind, name, help string, value func(r *Reading) int64) family {
	return family{name: name, kind: k, help: help, read: func(r *Reading, put put) { put(float64(value(r))) }}
}

var cacheFamilies = []family{
	num(gauge, "brisk_cache_chunks", "Chunks that can be read", func(r *Reading) int64 { return r.Cache.Chunks }),
	num(gauge, "brisk_cache_bytes", "What they take, in whole blocks", func(r *Reading) int64 { return r.Cache.Bytes }),
	num(gauge, "brisk_cache_limit_bytes", "What the cache may take; 0 is no limit", func(r *Reading) int64 { return r.Cache.Limit }),
	num(gauge, "brisk_cache_pinned_bytes", "What mounted images keep from being evicted", func(r *Reading) int64 { return r.Cache.Pinned }),
	num(gauge, "brisk_cache_disk_bytes", "What the cache's file takes of the disk", func(r *Reading) int64 { return r.Cache.Disk }),
	num(gauge, "brisk_cache_reserve_bytes", "What the cache leaves free of the disk", func(r *Reading) int64 { return r.Reserve }),
	{name: "brisk_cache_reads_total", kind: counter, help: "Chunks that the cache was asked for",
		labels: []label{{"result", []string{"hit", "miss"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Cache.Hits), "hit")
			put(float64(r.Cache.Misses), "miss")
		}},
	num(counter, "brisk_cache_writes_total", "Chunks that were put into the cache", func(r *Reading) int64 { return r.Cache.Writes }),
	num(counter, "brisk_cache_evicted_chunks_total", "Chunks that had to make room", func(r *Reading) int64 { return r.Cache.Evicted }),
	num(counter, "brisk_cache_evicted_bytes_total", "What they had taken", func(r *Reading) int64 { return r.Cache.EvictedBytes }),
	num(counter, "brisk_cache_refused_chunks_total", "Chunks that were not kept: no room, and nothing that might go", func(r *Reading) int64 { return r.Cache.Refused }),
	num(counter, "brisk_cache_damaged_chunks_total", "Chunks that were found damaged, however, and dropped or mended", func(r *Reading) int64 { return r.Cache.Drops }),
	num(counter, "brisk_cache_failures_total", "Chunks that could not be read or kept because the disk failed", func(r *Reading) int64 { return r.Store.CacheFailures }),
}

var scrubFamilies = []family{
	num(counter, "brisk_scrub_chunks_total", "Chunks that were read and verified", func(r *Reading) int64 { return r.Cache.Scrubbed }),
	num(counter, "brisk_scrub_bytes_total", "The bytes of them", func(r *Reading) int64 { return r.Cache.ScrubbedBytes }),
	num(counter, "brisk_scrub_damaged_chunks_total", "Of these chunks, the damaged ones", func(r *Reading) int64 { return r.Cache.ScrubDamaged }),
	num(counter, "brisk_scrub_mended_chunks_total", "Of the damaged ones, those below native mounts that were fetched again", func(r *Reading) int64 { return r.Mended }),
	num(counter, "brisk_scrub_lost_chunks_total", "Of the damaged ones, those below native mounts that could not be", func(r *Reading) int64 { return r.Lost }),
	num(gauge, "brisk_scrub_round_bytes", "What the round that is under way, or the next, has to cover", func(r *Reading) int64 { return r.Scrub.Total }),
	num(gauge, "brisk_scrub_round_covered_bytes", "What it has covered", func(r *Reading) int64 { return r.Scrub.Done }),
	num(gauge, "brisk_scrub_completed_timestamp_seconds", "When the last whole round ended; 0 if there was none", func(r *Reading) int64 { return unix(r.Scrub.Ended) }),
}

var readFamilies = []family{
	{name: "brisk_chunk_reads_total", kind: counter, help: "Chunks, or parts of them, by where they came from; joined ones waited for another's fetch, holes are zeros",
		labels: []label{{"source", []string{"cache", "peer", "origin", "joined", "hole"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Store.CacheReads), "cache")
			put(float64(r.Store.PeerReads), "peer")
			put(float64(r.Store.OriginReads), "origin")
			put(float64(r.Store.JoinedReads), "joined")
			put(float64(r.Store.HoleReads), "hole")
		}},
	{name: "brisk_chunk_read_bytes_total", kind: counter, help: "The plain bytes of them",
		labels: []label{{"source", []string{"cache", "peer", "origin"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Store.CacheBytes), "cache")
			put(float64(r.Store.PeerBytes), "peer")
			put(float64(r.Store.OriginBytes), "origin")
		}},
	num(counter, "brisk_chunk_transferred_bytes_total", "Bytes of chunks from the origin, as they were transferred: compressed", func(r *Reading) int64 { return r.Store.StoredBytes }),
	{name: "brisk_chunk_damaged_total", kind: counter, help: "Chunks that were not what was asked for, by who gave them",
		labels: []label{{"source", []string{"origin", "peer"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Store.DamagedReads), "origin")
			put(float64(r.Store.DamagedAnswers), "peer")
		}},
	num(counter, "brisk_chunk_broken_answers_total", "Answers of the origin that were wrong, and right when asked for again", func(r *Reading) int64 { return r.Store.BrokenAnswers }),
	num(gauge, "brisk_packs_unreadable", "Packs at the origin whose index is damaged", func(r *Reading) int64 { return int64(r.Store.UnreadablePacks) }),
}

// network makes a family of a number that only an origin over a network has.
func network(name, help string, value func(n *Network) int64) family {
	return family{name: name, kind: counter, help: help, read: func(r *Reading, put put) {
		if r.Network != nil {
			put(float64(value(r.Network)))
		}
	}}
}

var originFamilies = []family{
	{name: "brisk_origin_up", kind: gauge, help: "Whether it answers, as far as is known (1); if not (0), requests fail at once, and one at a time tries whether it is back",
		read: func(r *Reading, put put) {
			if r.Network != nil {
				put(one(r.Network.Up))
			}
		}},
	network("brisk_origin_requests_total", "Requests, second ones included", func(n *Network) int64 { return n.Requests }),
	network("brisk_origin_read_bytes_total", "Bytes that were read", func(n *Network) int64 { return n.Bytes }),
	{name: "brisk_origin_errors_total", kind: counter, help: "Requests without an answer, those that were denied for want of good credentials, and those that were not made because the origin is down",
		labels: []label{{"reason", []string{"unanswered", "denied", "down"}}},
		read: func(r *Reading, put put) {
			if n := r.Network; n != nil {
				put(float64(n.Failures), "unanswered")
				put(float64(n.Denied), "denied")
				put(float64(n.Refused), "down")
			}
		}},
	network("brisk_origin_retries_total", "Requests again after a failure", func(n *Network) int64 { return n.Retries }),
	network("brisk_origin_hedges_total", "Second requests because the first was slow", func(n *Network) int64 { return n.Hedges }),
	network("brisk_origin_hedges_won_total", "Second requests that were faster", func(n *Network) int64 { return n.HedgesWon }),
	network("brisk_origin_merged_reads_total", "Reads that a neighbour's request served", func(n *Network) int64 { return n.Merged }),
}

// company makes a family of a number that only a machine in a cluster has.
func company(name, help string, value func(s *peer.Stats) int64) family {
	return family{name: name, kind: counter, help: help, read: func(r *Reading, put put) {
		if r.Peers != nil {
			put(float64(value(r.Peers)))
		}
	}}
}

// each adds up a number of all peers.
func each(s *peer.Stats, value func(p *peer.One) int64) (sum int64) {
	for i := range s.Peers {
		sum += value(&s.Peers[i])
	}
	return sum
}

var peerFamilies = []family{
	{name: "brisk_peers", kind: gauge, help: "Other machines; resting ones have failed and convicted ones have lied, and are left alone for a while",
		labels: []label{{"state", []string{"ready", "resting", "convicted", "gone"}}},
		read: func(r *Reading, put put) {
			if r.Peers == nil {
				return
			}
			for _, s := range []peer.State{peer.Ready, peer.Resting, peer.Convicted, peer.Gone} {
				put(0, string(s))
			}
			for _, p := range r.Peers.Peers {
				put(1, string(p.State))
			}
		}},
	{name: "brisk_peer_fetches_total", kind: counter, help: "Chunks that others were asked for: found, had by nobody, or without anybody to ask",
		labels: []label{{"result", []string{"found", "absent", "unasked"}}},
		read: func(r *Reading, put put) {
			if s := r.Peers; s != nil {
				put(float64(s.Hits), "found")
				put(float64(s.Absent), "absent")
				put(float64(s.Unasked), "unasked")
			}
		}},
	company("brisk_peer_fetched_bytes_total", "What came from them, as it was transferred", func(s *peer.Stats) int64 { return each(s, func(p *peer.One) int64 { return p.Bytes }) }),
	company("brisk_peer_hedges_total", "Second requests because the first was slow", func(s *peer.Stats) int64 { return s.Hedges }),
	company("brisk_peer_unwanted_chunks_total", "Chunks that came twice: another answer had been taken", func(s *peer.Stats) int64 { return s.Unwanted }),
	company("brisk_peer_unwanted_bytes_total", "The bytes of them", func(s *peer.Stats) int64 { return s.Wasted }),
	{name: "brisk_peer_errors_total", kind: counter, help: "Requests and connections that failed, requests that were too many for the other side, and answers that were not what was asked for",
		labels: []label{{"reason", []string{"failed", "busy", "lied"}}},
		read: func(r *Reading, put put) {
			if s := r.Peers; s != nil {
				put(float64(each(s, func(p *peer.One) int64 { return p.Failures })), "failed")
				put(float64(each(s, func(p *peer.One) int64 { return p.Busy })), "busy")
				put(float64(each(s, func(p *peer.One) int64 { return p.Lies })), "lied")
			}
		}},
	company("brisk_peer_served_chunks_total", "Chunks that were given to others", func(s *peer.Stats) int64 { return s.Served }),
	company("brisk_peer_served_bytes_total", "The bytes of them", func(s *peer.Stats) int64 { return s.Bytes }),
	company("brisk_peer_refused_requests_total", "Requests of others beyond the limits", func(s *peer.Stats) int64 { return s.Refused }),
}

var profileFamilies = []family{
	num(counter, "brisk_profile_starts_total", "Starts whose reads were recorded", func(r *Reading) int64 { return r.Profiles.Starts }),
	num(counter, "brisk_profile_merged_starts_total", "Of these, those that a profile was learnt from", func(r *Reading) int64 { return r.Profiles.Merged }),
	num(counter, "brisk_profile_writes_total", "Profiles that were stored", func(r *Reading) int64 { return r.Profiles.Written }),
	num(counter, "brisk_profile_touched_chunks_total", "Chunks that recorded starts read", func(r *Reading) int64 { return r.Profiles.Touched }),
	num(counter, "brisk_hot_packs_total", "Hot packs that were written", func(r *Reading) int64 { return r.Profiles.HotPacks }),
	num(counter, "brisk_hot_pack_bytes_total", "What is in them, as stored", func(r *Reading) int64 { return r.Profiles.HotBytes }),
	{name: "brisk_prefetch_listed_bytes_total", kind: counter, help: "What recorded starts were expected to read, by whether they did; it includes what the cache had already",
		labels: []label{{"used", []string{"yes", "no"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Profiles.UsedBytes), "yes")
			put(float64(r.Profiles.ListedBytes-r.Profiles.UsedBytes), "no")
		}},
	num(counter, "brisk_prefetch_total", "Times that something was fetched ahead of a start", func(r *Reading) int64 { return r.Profiles.Courses }),
	num(counter, "brisk_prefetch_cancelled_total", "Of these, those that were broken off, because the start was over", func(r *Reading) int64 { return r.Profiles.Cancelled }),
	num(counter, "brisk_prefetch_chunks_total", "Chunks that were fetched ahead of starts", func(r *Reading) int64 { return r.Profiles.Brought }),
	num(counter, "brisk_prefetch_bytes_total", "The plain bytes of them", func(r *Reading) int64 { return r.Profiles.BroughtBytes }),
	num(counter, "brisk_hot_pack_streamed_chunks_total", "Chunks that came in streams of hot packs", func(r *Reading) int64 { return r.Store.StreamedChunks }),
	num(counter, "brisk_hot_pack_streamed_bytes_total", "The plain bytes of them", func(r *Reading) int64 { return r.Store.StreamedBytes }),
	num(counter, "brisk_hot_pack_unwanted_chunks_total", "Chunks that came in such streams when somebody who could not wait had fetched them", func(r *Reading) int64 { return r.Store.StreamedTwice }),
}

var mountFamilies = []family{
	{name: "brisk_mounted_images", kind: gauge, help: "Images that are mounted, by how; one may be mounted both ways",
		labels: []label{{"kind", []string{"lazy", "native"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Node.Lazy), "lazy")
			put(float64(r.Node.Native), "native")
		}},
	num(gauge, "brisk_mounts_used", "Of these mounts, those that something runs on", func(r *Reading) int64 { return int64(r.Node.Used) }),
	num(gauge, "brisk_fill_queue", "Images whose rest is to be fetched, the one that is being fetched left out", func(r *Reading) int64 { return int64(r.Node.Queued) }),
	num(gauge, "brisk_fill_bytes", "The size of the image whose rest is being fetched; 0 if none is", func(r *Reading) int64 { return r.Node.TotalBytes }),
	num(gauge, "brisk_fill_missing_bytes", "What is missing of it", func(r *Reading) int64 { return r.Node.MissingBytes }),
	{name: "brisk_fills_total", kind: counter, help: "How fetching the rest of an image ended; what had no room or failed is tried again after the next start",
		labels: []label{{"result", []string{"complete", "no room", "failed", "cancelled"}}},
		read: func(r *Reading, put put) {
			for how, n := range r.Node.Filled {
				put(float64(n), string(how))
			}
		}},
}

// garbageKinds are what `brisk store gc` lists.
var garbageKinds = []string{
	"functions", "snapshots", "code", "uploads", "SDKs", "images without a name", "results of builds and imports", "packs needed in part",
	"packs and metadata", "local metadata", "profiles", "cached chunks",
}

var garbageFamilies = []family{
	num(counter, "brisk_gc_runs_total", "Collections, those by hand included", func(r *Reading) int64 { return r.Garbage.Collections }),
	num(counter, "brisk_gc_incomplete_runs_total", "Of these, those in which something could not be collected", func(r *Reading) int64 { return r.Garbage.Incomplete }),
	{name: "brisk_gc_seconds_total", kind: counter, help: "How long they took", read: func(r *Reading, put put) { put(r.Garbage.Seconds) }},
	num(gauge, "brisk_gc_completed_timestamp_seconds", "When the last one ended; 0 if there was none", func(r *Reading) int64 { return unix(r.Garbage.Ended) }),
	{name: "brisk_gc_freed_total", kind: counter, help: "What they deleted, as `brisk store gc` calls it", labels: []label{{"kind", garbageKinds}},
		read: func(r *Reading, put put) {
			for k, f := range r.Garbage.Freed {
				put(float64(f.Things), k)
			}
		}},
	{name: "brisk_gc_freed_bytes_total", kind: counter, help: "The bytes of it, as they lay on the disk or at the origin", labels: []label{{"kind", garbageKinds}},
		read: func(r *Reading, put put) {
			for k, f := range r.Garbage.Freed {
				put(float64(f.Bytes), k)
			}
		}},
	num(gauge, "brisk_gc_waiting_bytes", "What the last one left because it was not old enough", func(r *Reading) int64 { return r.Garbage.WaitingBytes }),
	num(gauge, "brisk_gc_held_bytes", "What the last one left because work in progress or a mounted image needed it", func(r *Reading) int64 { return r.Garbage.HeldBytes }),
}

// The words of how things start, and of the steps to it.
var (
	starts = []string{"restored", "restored-fresh", "cold", "fallback"}
	waits  = append([]string{"warm"}, starts...)
	steps  = []string{
		"find image", "find profile", "read metadata", "stream hot pack", "mount image", "network", "create sandbox", "start python", "import",
		"restore", "connect", "sandbox create", "sandbox start", "sandbox restore",
	}
)

var callFamilies = []family{
	num(gauge, "brisk_calls_running", "Calls that have an instance", func(r *Reading) int64 { return int64(r.Calls.Running) }),
	num(gauge, "brisk_calls_waiting", "Calls that wait for one", func(r *Reading) int64 { return int64(r.Calls.Waiting) }),
	{name: "brisk_calls_total", kind: counter, help: "Calls that have ended; raised: with an exception of the user's code",
		labels: []label{{"result", []string{"succeeded", "raised", "failed"}}},
		read: func(r *Reading, put put) {
			for _, s := range []scheduler.CallState{scheduler.CallSucceeded, scheduler.CallRaised, scheduler.CallFailed} {
				put(float64(r.Calls.Calls[s]), string(s))
			}
		}},
	{name: "brisk_call_wait_seconds", kind: histogram, help: "How long calls waited for an instance, by how that had started", labels: []label{{"start", waits}},
		spread: func(r *Reading, put func(trace.Distribution, ...string)) { spreads(r.Calls.Waits, put) }},
	{name: "brisk_call_run_seconds", kind: histogram, help: "How long calls ran then",
		spread: func(r *Reading, put func(trace.Distribution, ...string)) { put(r.Calls.Runs) }},
	{name: "brisk_instances", kind: gauge, help: "Instances of functions; created ones are sandboxes that wait for a snapshot",
		labels: []label{{"state", []string{"busy", "idle", "created", "starting"}}},
		read: func(r *Reading, put put) {
			for state, n := range r.Calls.Instances {
				put(float64(n), state)
			}
		}},
	num(gauge, "brisk_containers", "Containers that run: `brisk run --image`", func(r *Reading) int64 { return int64(r.Calls.Containers) }),
	num(counter, "brisk_containers_finished_total", "Containers that have ended by themselves", func(r *Reading) int64 { return r.Calls.Finished }),
	{name: "brisk_instance_start_seconds", kind: histogram, help: "How long instances took to start, by how", labels: []label{{"start", starts}},
		spread: func(r *Reading, put func(trace.Distribution, ...string)) { spreads(r.Calls.Starts, put) }},
	{name: "brisk_instance_start_step_seconds", kind: summary, help: "The steps of these starts, as `brisk calls show` draws them; some are parts of others", labels: []label{{"step", steps}},
		spread: func(r *Reading, put func(trace.Distribution, ...string)) { spreads(r.Calls.Steps, put) }},
	num(counter, "brisk_instance_start_failures_total", "Instances that did not start", func(r *Reading) int64 { return r.Calls.Unborn }),
	{name: "brisk_snapshots_total", kind: counter, help: "Snapshots", labels: []label{{"result", []string{"made", "failed"}}},
		read: func(r *Reading, put put) {
			put(float64(r.Calls.Snapped), "made")
			put(float64(r.Calls.Unmade), "failed")
		}},
}

func spreads(m map[string]trace.Distribution, put func(trace.Distribution, ...string)) {
	for word, d := range m {
		put(d, word)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unix is a time in seconds, 0 for none.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
