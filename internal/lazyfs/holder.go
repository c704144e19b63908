package lazyfs

import (
	"flag"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// What server and holder say to each other over holder.sock, each a packet: on
// being accepted the server gets hello with the FUSE device's descriptor; it may
// send bye. The end of the connection without it means that the server died.
const (
	hello = "brisk holder 1"
	bye   = "bye"
)

// Descriptors that a holder inherits.
const (
	holderDevice = 3 // the open /dev/fuse
	holderReady  = 4 // a pipe, to report readyWord or an error
)

const readyWord = "ready"

// RunHolder is the main function of the holder process: it keeps the FUSE device
// open between a server and the next. It returns when a server has said bye, when
// none has been connected for -linger, or, after SIGTERM, when none is connected;
// by then everything that was mounted below -dir is unmounted, and who still reads
// gets EIO.
func RunHolder(args ...string) error {
	flags := flag.NewFlagSet("holder", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "directory of the mounts")
	linger := flags.Duration("linger", time.Minute, "how long to wait for a server")
	if err := flags.Parse(args); err != nil {
		return fault.New(fault.Invalid, "holder: %v", err)
	}
	ready := os.NewFile(holderReady, "ready")
	listener, err := listenHolder(*dir)
	if ready != nil {
		word := readyWord
		if err != nil {
			word = err.Error()
		}
		_, _ = io.WriteString(ready, word) // a server that is gone needs no word
		ready.Close()
	}
	if err != nil {
		return err
	}
	unix.CloseOnExec(holderDevice)
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	go func() {
		<-terminate
		listener.Close() // ends the loop below once no server is connected
	}()
	_ = os.Chdir("/") // only so that nobody's directory is held
	debug.FreeOSMemory()

	for {
		listener.SetDeadline(time.Now().Add(*linger))
		conn, err := listener.AcceptUnix()
		if err != nil {
			break
		}
		bade := holdFor(conn)
		conn.Close()
		if bade {
			break
		}
	}
	// No further server shall get this device: it would find the mounts going.
	listener.Close()
	err = detachAll(*dir)
	unix.Close(holderDevice)
	return err
}

// holdFor serves one server until it ends; bade is whether it said bye.
func holdFor(conn *net.UnixConn) (bade bool) {
	_, _, err := conn.WriteMsgUnix([]byte(hello), unix.UnixRights(holderDevice), nil)
	if err != nil {
		return false
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return err == nil && string(buf[:n]) == bye
}

// listenHolder makes the socket, after making sure that there is no other holder.
// The lock file stays locked until the process ends.
func listenHolder(dir string) (*net.UnixListener, error) {
	if dir == "" {
		return nil, fault.New(fault.Invalid, "holder: -dir is missing")
	}
	lock, err := unix.Open(holderLock(dir), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "holder: open", holderLock(dir))
	}
	err = unix.FcntlFlock(uintptr(lock), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err != nil {
		return nil, fault.New(fault.Exists, "another holder has %s", dir)
	}
	os.Remove(holderSocket(dir)) // of a holder that was killed
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: holderSocket(dir), Net: "unixpacket"})
	if err != nil {
		return nil, fault.Wrap(err, "holder: listen at", holderSocket(dir))
	}
	return listener, os.Chmod(holderSocket(dir), 0o600)
}

// HolderPID finds the holder of a directory: the process whose mount namespace a
// new server has to join (mountns.Join) before it calls Open.
func HolderPID(dir string) (pid int, alive bool) {
	fd, err := unix.Open(holderLock(dir), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	// A record lock tells who has it, and cannot outlive its process.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &lock)
	return int(lock.Pid), err == nil && lock.Type != unix.F_UNLCK && lock.Pid > 0
}
