package mutants

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Tested is a mutant that a test of a package catches. The simulation cannot: it does not run that
// part, or the part is about one case.
type Tested struct {
	Mutant
	Package string // of the test, below the module's path
	Test    string // name of the test that fails
}

// tested returns a mutant of one edit.
func tested(name, pkg, test, file, before, after string) Tested {
	return Tested{one(name, "", "", file, before, after), pkg, test}
}

// ByTests returns the mutants that tests of packages catch.
func ByTests() []Tested {
	return []Tested{
		tested("replies_not_postponed", "fsm", "TestPostponedOutcomesKeepTheirReplies",
			"fsm/replace.go",
			"m.dedup.put(entry, before.replies.find(entry.id))", "m.dedup.put(entry, nil)"),
		tested("restored_watch_index", "fsm", "TestRestoredWatchEndsWithoutASubscriber",
			"fsm/replace.go",
			"taken.index = m.index // the index in the snapshot is of another log", "_ = m.index"),
		tested("disconnect_boundary", "fsm", "TestWatchMadeAtTheTimeOfTheDisconnectEnds",
			"fsm/keynotify.go",
			"candidate.brokerTime <= command.BrokerTime",
			"candidate.brokerTime < command.BrokerTime"),
		tested("outcome_for_anyone", "fsm", "TestOutcomeIsForThoseWhoMayMakeTheRequest",
			"fsm/execute.go",
			"if earlier.client != clientHash(command.Principal.ClientID) && !m.mayMake(command) {",
			"if false {"),
		tested("expiry_from_reading", "mqttfront/leader",
			"TestWriteThatMayBeForgottenIsNotExecuted", "mqttfront/leader/request.go",
			"r.Deadline.Sub(r.Arrived)-waited > leftWhenExpired",
			"r.Deadline.Sub(r.Arrived)-0*waited > leftWhenExpired"),
		tested("non_voters_set_clock", "cluster", "TestNonVotersSetNoClusterClock",
			"cluster/clusterclock.go",
			"\t\t\tif voters++; inTime || server.ID == self {\n\t\t\t\tanswered++\n\t\t\t}\n\t\t}\n",
			"\t\t\tvoters++\n\t\t}\n\t\tif inTime || server.ID == self {\n\t\t\tanswered++\n\t\t}\n"),
		tested("newer_backup", "cluster", "TestBackupOfANewerVersionIsRefused",
			"cluster/restore.go",
			"status.Version > inForce", "false"),
		tested("applied_replaced", "cluster/raftlog", "TestAppliedEntriesAreNotReplaced",
			"cluster/raftlog/checkedlog.go",
			"last >= end && from <= min(applied, end)", "false && from <= min(applied, end)"),
		tested("shorter_log_kept", "cluster/raftlog",
			"TestConvertLogRefusesAShorterLogOfTheSameTerm", "cluster/raftlog/convert.go",
			" ||\n\t\thas.last.term == want.last.term && has.last.index < want.last.index", ""),
		tested("wal_not_erased", "cluster/wal", "TestCrashLeavesAcknowledgedEntriesAndNoOthers",
			"cluster/wal/log.go",
			"} else if !l.clean {", "} else if false {"),
		tested("wal_found_unsynced", "cluster/wal", "TestCrashLeavesAcknowledgedEntriesAndNoOthers",
			"cluster/wal/log.go",
			"if err == nil && len(numbers) > 0 {", "if false {"),
		tested("wal_names_not_synced", "cluster/wal",
			"TestCrashLeavesAcknowledgedEntriesAndNoOthers", "cluster/wal/segment.go",
			"err = folder.Sync()", "err = nil"),
		tested("touched_not_cleared", "mqttfront/mirror",
			"TestMessageOfADeletedKeyIsClearedAmongManyChanges", "mqttfront/mirror/pass.go",
			"\tcase p.backlog.isTouched(t):\n",
			"\tcase p.backlog.isTouched(t) && w.value == \"\":\n\tcase p.backlog.isTouched(t):\n"),
		tested("lock_counts_from_answer", "client", "TestRenewalCountsFromWhenItWasSent",
			"client/lock.go",
			"renewedAt = sentAt", "renewedAt, _ = now(), sentAt"),
		tested("unlock_hides_loss", "client", "TestLockIsLostWhenAnotherClientHasIt",
			"client/lock.go",
			"if lost || l.isLost() {", "if lost {"),
		tested("held_is_not_lost", "client", "TestLockIsLostWhenAnotherClientHasIt",
			"client/lock.go",
			"if errors.Is(err, ErrNotApplied) {\n\t\t\t\tclose(l.lost)",
			"if false {\n\t\t\t\tclose(l.lost)"),
		tested("no_gap_after_refusal", "client", "TestRefusedRenewalIsAGap", "client/watch.go",
			"\t\t\tmissed = c.establishedWatchers(watched)\n\t\t\tif !backoff.Pause",
			"\t\t\tif !backoff.Pause"),
		tested("synced_early", "client", "TestGapDuringAPassIsNotCovered", "client/follow.go",
			"if first := f.covered < 0; !first {\n\t\tf.covered = gaps",
			"if first := f.covered < 0; !first {\n\t\tf.covered = f.gaps"),
	}
}

// ErrNotCaught says that a test passes with a mutant.
var ErrNotCaught = errors.New("the test passes with the mutant")

// Caught builds the test's package with the mutant into a folder, and runs the test. It returns nil
// if the test fails, and the error of the build if there is no test to run.
func (m *Tested) Caught(ctx context.Context, folder string) error {
	written, err := Overlay(ctx, folder, m.Mutant)
	if err != nil {
		return err
	}
	test := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-overlay", written,
		"-run", "^"+m.Test+"$", "holdfast/"+m.Package)
	output, err := test.CombinedOutput()
	switch {
	case err == nil:
		return fmt.Errorf("%w: %s", ErrNotCaught, output)
	case !strings.Contains(string(output), "--- FAIL: "+m.Test):
		return fmt.Errorf("the test did not run: %w: %s", err, output)
	}
	return nil
}
