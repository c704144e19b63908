package sandboxtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"

	"brisk.dev/brisk/internal/sandbox"
)

// Own is the body of the process that Config.Owner starts: it makes sandboxes in
// all stages, says so on standard output, and waits to be killed.
func Own(rt sandbox.Runtime, root string) error {
	f := &Fixture{RT: rt, Root: root}
	for i, id := range []string{"created", "started", "ended", "upper"} {
		spec := f.Spec("sleep")
		spec.ID = id
		if id == "ended" {
			spec.Args = []string{"probe", "exit", "0"}
		}
		spec.Upper = id == "upper"
		sb, err := rt.Create(context.Background(), spec)
		if err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := sb.Start(context.Background()); err != nil {
			return err
		}
		if id == "ended" {
			if _, err := sb.Wait(context.Background()); err != nil {
				return err
			}
		}
	}
	fmt.Println("ready")
	select {}
}

// The environment by which the suite tells an owner what to own.
const (
	OwnerDir   = "BRISK_TEST_OWNER_DIR"
	OwnerGroup = "BRISK_TEST_OWNER_GROUP"
	OwnerRoot  = "BRISK_TEST_OWNER_ROOT"
)

func (s *suite) sweep(f *Fixture) {
	t := f.T
	mine := f.Start(f.Spec("sleep"))
	if got, err := f.RT.Sweep(Context(t)); err != nil || len(got) != 0 {
		t.Errorf("sweep of nothing: got %v, %v", got, err)
	}
	cmd := exec.Command(s.config.Owner[0], s.config.Owner[1:]...)
	cmd.Env = append(os.Environ(), OwnerDir+"="+f.Dir, OwnerGroup+"="+f.Group, OwnerRoot+"="+f.Root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || strings.TrimSpace(line) != "ready" {
		t.Fatalf("the owner said %q, %v", line, err)
	}
	if l := Traces(t, f.Dir, f.Group); len(l) < 10 {
		t.Errorf("the killed owner left only %q", l)
	}
	got, err := f.RT.Sweep(Context(t))
	if want := []string{"created", "ended", "started", "upper"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("sweep: got %v, %v, want %v", got, err, want)
	}
	// Ours was left alone.
	if _, err := mine.Usage(); err != nil {
		t.Errorf("our own sandbox after a sweep: %v", err)
	}
}
