//go:build linux

package redwarfs_test

import (
	"bufio"
	"bytes"
	"debug/elf"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// static returns the program that scripts/test-go builds from examples/serve, and skips the test if there is none.
func static(t *testing.T) string {
	t.Helper()
	program := os.Getenv("REDWARFS_STATIC_SERVE")
	if program == "" {
		t.Skip("REDWARFS_STATIC_SERVE names no program: scripts/test-go builds it with REDWARFS_SLOW=1")
	}
	return program
}

// alone makes a root with nothing but the static program and an image, and returns what makes commands of the program in it.
func alone(t *testing.T) func(arguments ...string) *exec.Cmd {
	t.Helper()
	program := static(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root")
	}
	root := t.TempDir()
	image := filepath.Join(vectors, "../fixtures/compat/compat-v0.9.10.dwarfs")
	for from, to := range map[string]string{program: "serve", image: "image.dwarfs"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, to), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return func(arguments ...string) *exec.Cmd {
		command := exec.Command("/serve", arguments...)
		command.Dir = "/"
		command.Env = []string{}
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		return command
	}
}

func TestStaticProgramNeedsNoLibrary(t *testing.T) {
	file, err := elf.Open(static(t))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("it has an interpreter")
		}
	}
	if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Error(libraries, err)
	}
}

func TestStaticProgramPrintsAFile(t *testing.T) {
	serve := alone(t)
	want, err := compat(t).ReadFile("format.sh")
	if err != nil {
		t.Fatal(err)
	}
	if printed, err := serve("-print", "format.sh", "image.dwarfs").Output(); err != nil || !bytes.Equal(printed, want) {
		t.Error(printed, err)
	}
	said, err := serve("-print", "missing", "image.dwarfs").CombinedOutput()
	if err == nil || string(said) != "serve: open missing: not found in the image: missing\n" {
		t.Error(string(said), err)
	}
	if said, err := serve("missing").CombinedOutput(); err == nil || !strings.HasPrefix(string(said), "serve: open missing: ") {
		t.Error(string(said), err)
	}
}

func TestStaticProgramServesFiles(t *testing.T) {
	serve := alone(t)
	command := serve("-listen", "127.0.0.1:0", "image.dwarfs")
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	time.AfterFunc(time.Minute, func() { _ = command.Process.Kill() })
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err, said.String())
	}
	image := compat(t)
	for _, path := range []string{"format.sh", "bench.sh"} {
		want, err := image.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.Get(strings.TrimSpace(address) + path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
			t.Error(path, response.Status, got, err)
		}
	}
}
