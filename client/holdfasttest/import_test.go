package holdfasttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// outside is the test file of another module, which imports the client and this package.
const outside = `package plant

import (
	"testing"

	"holdfast/client"
	"holdfast/client/holdfasttest"
)

func TestStoreServesAnotherModule(t *testing.T) {
	store, err := client.Connect(t.Context(), client.Config{Addresses: []string{holdfasttest.Start(t).URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if _, err := store.Set(t.Context(), "press/1", []byte("running"), client.IfAbsent()); err != nil {
		t.Fatal(err)
	}
}
`

// Another module can import the client and this package after the commands that the README gives.
func TestAnotherModuleImportsThis(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "press_test.go"), []byte(outside),
		0o600); err != nil {
		t.Fatal(err)
	}
	commands := append([]string{"go mod init plant.example/press"}, importCommands(t, root)...)
	for _, line := range append(commands, "go test ./...") {
		arguments := strings.Fields(line)
		command := exec.CommandContext(t.Context(), arguments[0], arguments[1:]...)
		command.Dir = folder
		command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// importCommands returns the commands of the README by which another module imports this one, for a
// clone in the folder root.
func importCommands(t *testing.T, root string) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for line := range strings.Lines(string(readme)) {
		if command, found := strings.CutPrefix(line, "    go mod "); found {
			commands = append(commands, "go mod "+
				strings.ReplaceAll(command, "/path/to/holdfast", root))
		}
	}
	if len(commands) != 2 {
		t.Fatalf("the README has the commands %q", commands)
	}
	return commands
}
