package lazyfs

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// patience bounds everything that a holder has to do by itself: start, greet, end.
const patience = 10 * time.Second

// keeper is the server's side of a holder.
type keeper struct {
	conn  *net.UnixConn
	pidfd int
	child *exec.Cmd     // nil if an earlier server started it
	lost  chan struct{} // closed when the connection has ended
}

// startHolder starts a holder that keeps the device, and connects to it.
func startHolder(ctx context.Context, o Options, device int) (*keeper, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	copied, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fault.Wrap(err, "start", "holder")
	}
	dev := os.NewFile(uintptr(copied), "/dev/fuse")
	defer dev.Close()
	ready, ours, err := os.Pipe()
	if err != nil {
		return nil, fault.Wrap(err, "start", "holder")
	}
	defer ready.Close()
	cmd := exec.Command(o.Holder[0], append(o.Holder[1:len(o.Holder):len(o.Holder)],
		"-dir", o.Dir, "-linger", o.Linger.String())...)
	cmd.ExtraFiles = []*os.File{dev, ours} // holderDevice, holderReady
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	ours.Close()
	if err != nil {
		return nil, fault.Wrap(err, "start", "holder")
	}
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	word, err := io.ReadAll(io.LimitReader(ready, 4096))
	stop()
	var k *keeper
	if err == nil && string(word) == readyWord {
		var fd int
		if k, fd, err = connectHolder(ctx, o.Dir); err == nil && k != nil {
			unix.Close(fd)
			k.child = cmd
			return k, nil
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err == nil {
		err = fault.New(fault.Internal, "it ended at once: %s", word)
	}
	return nil, fault.Wrap(err, "start", "holder")
}

// awaitHolder is connectHolder for one that may be about to begin, its server
// having been killed meanwhile, or about to end.
func awaitHolder(ctx context.Context, dir string) (*keeper, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		k, fd, err := connectHolder(ctx, dir)
		if err != nil || k != nil {
			return k, fd, err
		}
		if _, alive := HolderPID(dir); !alive {
			return nil, -1, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, -1, fault.New(fault.Exists, "the holder of the mounts in %s does not answer", dir)
		}
	}
}

// connectHolder connects to the holder of a directory and gets the device from
// it; nil without an error if there is no holder, or one that is about to end.
func connectHolder(ctx context.Context, dir string) (*keeper, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unixpacket", holderSocket(dir))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, -1, nil
	}
	if err != nil {
		return nil, -1, fault.Wrap(err, "connect to", "holder")
	}
	conn := c.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })
	defer stop()
	pidfd, err := peer(conn)
	if err != nil {
		conn.Close()
		return nil, -1, nil // it has ended meanwhile
	}
	fd, greeting, err := receiveDevice(conn)
	if err == nil && greeting == hello && fd >= 0 {
		k := &keeper{conn: conn, pidfd: pidfd, lost: make(chan struct{})}
		go k.watch()
		return k, fd, nil
	}
	conn.Close()
	defer unix.Close(pidfd)
	if fd >= 0 {
		unix.Close(fd)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, -1, fault.New(fault.Exists, "another server uses the mounts in %s", dir)
	case err == nil && greeting != "":
		// Of another version: what it holds cannot be taken over.
		err = endProcess(pidfd, unix.SIGTERM)
		return nil, -1, err
	}
	// It was ending when we came; what it held is gone when it is.
	return nil, -1, waitProcess(pidfd, patience)
}

// receiveDevice reads the greeting; fd is -1 if none came with it.
func receiveDevice(conn *net.UnixConn) (fd int, greeting string, err error) {
	buf, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	n, k, _, _, err := conn.ReadMsgUnix(buf, rights)
	if err != nil {
		return -1, "", err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:k])
	if err != nil || len(messages) == 0 {
		return -1, string(buf[:n]), nil //nolint:nilerr // the greeting says why there is none
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, string(buf[:n]), nil //nolint:nilerr // as above
	}
	return fds[0], string(buf[:n]), nil
}

// peer gives a descriptor of the process that listens at the other end.
func peer(conn *net.UnixConn) (pidfd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(cerr, err); err != nil {
		return -1, err
	}
	return unix.PidfdOpen(int(cred.Pid), 0)
}

// watch waits for the end of the connection; a holder never sends a second packet.
func (k *keeper) watch() {
	k.conn.SetReadDeadline(time.Time{})
	_, _ = k.conn.Read(make([]byte, 1)) // whatever it gives, it is the end
	close(k.lost)
}

// dismiss tells the holder to go and waits for its end.
func (k *keeper) dismiss() error {
	_, _ = k.conn.Write([]byte(bye)) // a holder that cannot hear it is ended below
	err := waitProcess(k.pidfd, patience)
	if err != nil {
		err = endProcess(k.pidfd, unix.SIGKILL)
	}
	k.close()
	return err
}

// close lets go of a holder; one that lives takes it for the server's death.
func (k *keeper) close() {
	k.conn.Close()
	<-k.lost
	if k.child != nil && waitProcess(k.pidfd, 0) == nil {
		k.child.Wait()
	}
	unix.Close(k.pidfd)
}

func endProcess(pidfd int, sig unix.Signal) error {
	if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return fault.Wrap(err, "end", "holder")
	}
	return waitProcess(pidfd, patience)
}

// waitProcess waits for a process to end, a zombie being one that has.
func waitProcess(pidfd int, patience time.Duration) error {
	until := time.Now().Add(patience)
	for {
		left := max(0, time.Until(until))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && err != unix.EINTR:
			return fault.Wrap(err, "wait for", "holder")
		case left == 0:
			return fault.New(fault.Timeout, "the holder does not end")
		}
	}
}
