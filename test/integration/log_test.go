package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/testwait"
)

// † Nobody needs to read standard error: a reader that hangs stops no request, and one that goes
// does not end the process. Both are told.
func TestUnreadLogStopsNothing(t *testing.T) {
	m := startMosquitto(t)
	health := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	command := exec.Command(binary, "server", "--node.id", "n1", "--node.dataDir", t.TempDir(),
		"--broker.addresses", "mqtt://"+m.address,
		"--health.listen", health, "--admin.listen", "", "--log.level", "debug",
		"--node.minFreeDisk", "0")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The pipe is full before the process begins: its first line waits for ever.
	const size = 4096
	if _, _, fault := syscall.Syscall(syscall.SYS_FCNTL, writer.Fd(), unix.F_SETPIPE_SZ,
		size); fault != 0 {
		t.Fatal(fault)
	}
	if _, err := writer.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	command.Stderr = writer
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	defer func() {
		_ = command.Process.Kill()
		<-ended
	}()
	testwait.Until(t, "it is ready",
		func() bool { return httpStatus("http://"+health+"/readyz") == http.StatusOK })
	for i := range 20 {
		if _, code := holdfast(t, m.address, "", "set", "k", fmt.Sprint(i)); code != 0 {
			t.Fatalf("SET %d fails while nobody reads the log", i)
		}
	}
	_ = reader.Close() // from here on each write fails
	testwait.Until(t, "the lost lines are noted", func() bool {
		return strings.Contains(body("http://"+health+"/readyz"), "lines of the log were lost")
	})
	select {
	case err := <-ended:
		t.Fatalf("the process ended: %v", err)
	default:
	}
	if _, code := holdfast(t, m.address, "", "get", "k"); code != 0 {
		t.Error("GET fails")
	}
	if text := body("http://" + health + "/metrics"); strings.Contains(text,
		"\nholdfast_log_lines_dropped_total 0\n") {
		t.Error("the metric shows no lost line")
	}
}
