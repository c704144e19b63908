package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestReference keeps docs/cli.md equal to the commands' own help. With
// UPDATE_DOCS=1 it writes the page.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	a := &app{}
	root := a.root()
	var b strings.Builder
	b.WriteString("# Commands\n\nMade from the commands' own help by `UPDATE_DOCS=1 go test ./cmd/brisk -run TestReference`; do not edit.\n")
	b.WriteString("\nOf every command:\n\n```\n" + root.PersistentFlags().FlagUsages() + "```\n")
	reference(&b, root)
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "docs/cli.md is older than the commands")
}

func reference(b *strings.Builder, c *cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if sub.Long != "" || sub.Runnable() && !sub.HasSubCommands() {
			text := sub.Long
			if text == "" {
				text = sub.Short + "."
			}
			b.WriteString("\n## " + strings.TrimSuffix(sub.CommandPath()+" "+strings.Join(strings.Fields(sub.Use)[1:], " "), " ") + "\n\n")
			b.WriteString("```\n" + strings.TrimSpace(text) + "\n")
			if sub.Example != "" {
				b.WriteString("\n" + strings.TrimRight(sub.Example, "\n") + "\n")
			}
			if f := sub.LocalNonPersistentFlags().FlagUsages(); f != "" {
				b.WriteString("\n" + f)
			}
			b.WriteString("```\n")
		}
		reference(b, sub)
	}
}
