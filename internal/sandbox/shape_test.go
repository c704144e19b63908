package sandbox

import (
	"os"
	"testing"
)

func TestShapeFollowsTheContract(t *testing.T) {
	base := func() Spec {
		return Spec{
			ID: "a", Rootfs: "/one", Args: []string{"x", "yz"}, Env: []string{"A=1"}, Cwd: "/", UID: 1, GID: 2,
			Groups: []uint32{3}, Hostname: "h", Netns: "/n1",
			Mounts: []Mount{{Source: "/s", Target: "/t", ReadOnly: true}},
			Limits: Limits{CPU: 1, Memory: 1 << 30, Pids: 10},
		}
	}
	want := Shape(base())
	for name, c := range map[string]struct {
		change func(*Spec)
		same   bool
	}{
		"nothing":       {func(*Spec) {}, true},
		"id":            {func(s *Spec) { s.ID = "b" }, true},
		"rootfs":        {func(s *Spec) { s.Rootfs = "/two" }, true},
		"mount source":  {func(s *Spec) { s.Mounts[0].Source = "/other" }, true},
		"netns path":    {func(s *Spec) { s.Netns = "/n2" }, true},
		"cpu":           {func(s *Spec) { s.Limits.CPU = 2 }, true},
		"memory":        {func(s *Spec) { s.Limits.Memory = 1 }, true},
		"pids":          {func(s *Spec) { s.Limits.Pids = 11 }, false},
		"args split":    {func(s *Spec) { s.Args = []string{"xy", "z"} }, false},
		"args moved":    {func(s *Spec) { s.Args, s.Env = []string{"x"}, []string{"yz", "A=1"} }, false},
		"env":           {func(s *Spec) { s.Env = []string{"A=2"} }, false},
		"cwd":           {func(s *Spec) { s.Cwd = "/x" }, false},
		"uid":           {func(s *Spec) { s.UID = 2 }, false},
		"gid":           {func(s *Spec) { s.GID = 3 }, false},
		"groups":        {func(s *Spec) { s.Groups = nil }, false},
		"hostname":      {func(s *Spec) { s.Hostname = "i" }, false},
		"mount target":  {func(s *Spec) { s.Mounts[0].Target = "/u" }, false},
		"mount mode":    {func(s *Spec) { s.Mounts[0].ReadOnly = false }, false},
		"mount sockets": {func(s *Spec) { s.Mounts[0].Sockets = true }, false},
		"an output":     {func(s *Spec) { s.Stdout = os.Stdout }, false},
		"no network":    {func(s *Spec) { s.Netns = "" }, false},
		"upper":         {func(s *Spec) { s.Upper = true }, false},
	} {
		s := base()
		c.change(&s)
		if got := Shape(s) == want; got != c.same {
			t.Errorf("%s: same shape = %v, want %v", name, got, c.same)
		}
	}
}
