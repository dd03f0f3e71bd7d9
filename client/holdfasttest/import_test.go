package holdfasttest

import (
	"os"
	"os/exec"
	"path/filepath"
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
	if err := os.WriteFile(filepath.Join(folder, "press_test.go"), []byte(outside), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{
		{"mod", "init", "plant.example/press"},
		{"mod", "edit", "-require", "holdfast@v0.0.0", "-replace", "holdfast=" + root},
		{"mod", "tidy"},
		{"test", "./..."},
	} {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir = folder
		command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", arguments, err, out)
		}
	}
}
