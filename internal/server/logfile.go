package server

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"brisk.dev/brisk/internal/fault"
)

// logSize is where the log is put aside, in bytes. One older file is kept, so
// both together take at most twice as much: enough for days, too little to matter.
const logSize = 10 << 20

// logFile is a file that is put aside as NAME.1 when it is full. What cannot be
// written is dropped: a full disk must not stop a server.
type logFile struct {
	path string
	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLogFile(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fault.Wrap(err, "open log", path)
	}
	l := &logFile{path: path}
	if err := l.open(); err != nil {
		return nil, fault.Wrap(err, "open log", path)
	}
	return l, nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, st.Size()
	return nil
}

// Write appends one record.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return len(p), nil
	}
	if l.size > 0 && l.size+int64(len(p)) > logSize {
		if err := os.Rename(l.path, l.path+".1"); err == nil {
			old := l.f
			if l.open() == nil {
				old.Close()
			}
		}
	}
	n, _ := l.f.Write(p)
	l.size += int64(n)
	return len(p), nil
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// newLogger logs as JSON to file and, for a server in the foreground, as text to w.
func newLogger(file io.Writer, w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	handlers := []slog.Handler{slog.NewJSONHandler(file, o)}
	if w != nil {
		handlers = append(handlers, slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: forPeople}))
	}
	return slog.New(slog.NewMultiHandler(handlers...))
}

// forPeople leaves out the date.
func forPeople(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05.000"))
	}
	return a
}
