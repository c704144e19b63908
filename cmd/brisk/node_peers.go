package main

import (
	"fmt"
	"io"
	"time"

	"brisk.dev/brisk/internal/store/peer"
)

// printPeers says what has been exchanged with other machines.
func printPeers(w io.Writer, s *peer.Stats) {
	fields(w,
		"peers", fmt.Sprintf("%s chunks asked for, %s came from a peer, %s nobody had", count(s.Fetches), count(s.Hits), count(s.Absent)),
		"served", fmt.Sprintf("%s chunks, %s; %s requests too many", count(s.Served), bytesText(s.Bytes), count(s.Refused)))
	var rows [][]string
	for _, p := range s.Peers {
		state := string(p.State)
		if p.Until > 0 {
			state += " for " + (time.Duration(p.Until) * time.Millisecond).Round(time.Second).String()
		}
		median := "-"
		if p.P50 > 0 {
			median = ms(p.P50)
		}
		rows = append(rows, []string{p.Name, state, exchanged(p.Reads, p.Bytes), median, count(p.Failures), count(p.Lies), exchanged(p.ServedChunks, p.ServedBytes)})
	}
	if len(rows) > 0 {
		table(w, []string{"PEER", "STATE", "FETCHED", "MEDIAN", "FAILURES", "LIES", "SERVED"}, rows)
	}
}
