package lazyfs

import (
	"context"
	"time"
)

// janitor unmounts what has been unused for long, and replaces a holder that was
// killed, until ctx is done.
func (f *FS) janitor(ctx context.Context) {
	defer close(f.idle)
	tick := time.NewTicker(max(f.o.Keep/4, time.Second))
	defer tick.Stop()
	for {
		var lost chan struct{}
		if f.keeper != nil {
			lost = f.keeper.lost
		}
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			f.sweep(now.Add(-f.o.Keep))
		case <-lost:
			f.replaceHolder(ctx)
		}
	}
}

// replaceHolder starts another holder in place of one that has ended. Reads do
// not notice: the server has the device open too.
func (f *FS) replaceHolder(ctx context.Context) {
	f.keeper.close()
	f.keeper = nil
	k, err := startHolder(ctx, f.o, f.dev.fd)
	if err != nil {
		f.o.Log.Error("the holder has ended and cannot be replaced: image mounts will not outlive this server", "error", err)
		return
	}
	f.keeper = k
	f.o.Log.Warn("the holder had ended and was replaced")
}
