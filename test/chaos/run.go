package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"holdfast/test/chaos/record"
)

// runOnce runs a cluster under faults and judges it. Unless o.keep is set, it removes the
// containers. If no promise was broken and nothing failed, it then removes the data folders of the
// machines and of the broker, too.
func runOnce(ctx context.Context, o options) error {
	o.command = o.repeatCommand()
	if err := makeRoom(o.folder); err != nil {
		return err
	}
	fmt.Printf("building images\n")
	built, err := buildImages(ctx, o.mutant)
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, o, built)
	if err != nil {
		return err
	}
	defer func() { _ = w.log.Close() }() // each line was written at once
	fmt.Printf("seed %d: %d nodes, faults for %v\n", o.seed, o.nodes, o.duration)
	err = w.live(ctx)
	always := context.WithoutCancel(ctx)
	w.saveLogs(always)
	if !o.keep {
		err = errors.Join(err, w.downAll(always))
	}
	if len(w.run.Failures) > 0 || err != nil && ctx.Err() == nil {
		// so that makeRoom keeps the folder, even if judge fails
		err = errors.Join(err, markViolated(w.folder))
	}
	if err := errors.Join(err, record.Write(w.folder, "run.json", &w.run)); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	findings, err := judge(w.folder)
	switch {
	case err != nil:
		return err
	case len(findings.Violations) > 0:
		return &brokenPromises{findings}
	case !o.keep:
		return w.dropData()
	}
	return nil
}

// repeatCommand returns the command that runs the same faults.
func (o *options) repeatCommand() string {
	if o.smoke {
		return fmt.Sprintf("make chaos-smoke SEED=%d", o.seed) + o.mutantOption()
	}
	text := fmt.Sprintf("make chaos SEED=%d NODES=%d DURATION=%v", o.seed, o.nodes, o.duration)
	if len(o.kinds) > 0 {
		text += fmt.Sprintf(" FAULTS=%q", strings.Join(o.kinds, ","))
	}
	return text + o.mutantOption()
}

func (o *options) mutantOption() string {
	if o.mutant == "" {
		return ""
	}
	return " MUTANT=" + o.mutant
}

// violated is the file that marks the folder of a run in which a promise was broken, or that
// failed.
const violated = "VIOLATED"

func markViolated(folder string) error {
	return os.WriteFile(filepath.Join(folder, violated), nil, 0o644)
}

// makeRoom makes an empty folder. It removes the folder of an earlier run, but renames one that is
// marked as violated. It refuses any other folder that is not empty.
func makeRoom(folder string) error {
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", folder)
	case exists(filepath.Join(folder, violated)):
		if err := os.Rename(folder,
			fmt.Sprintf("%s-violated-%d", folder, time.Now().Unix())); err != nil {
			return err
		}
	case exists(filepath.Join(folder, "harness.log")):
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	default:
		if err := os.Remove(folder); err != nil { // only an empty folder may be used
			return fmt.Errorf("%s is no folder of a run: %w", folder, err)
		}
	}
	return os.MkdirAll(folder, 0o755)
}

// live starts the cluster, injects the faults, heals them, and collects the replicas' hashes and
// the last reads.
func (w *world) live(ctx context.Context) error {
	if err := w.up(ctx); err != nil {
		return err
	}
	for _, m := range w.machines {
		if err := m.apply(ctx); err != nil {
			return fmt.Errorf("the firewall of %s: %w", m.ID, err)
		}
	}
	watching, stop := context.WithCancel(ctx)
	var watched sync.WaitGroup
	watched.Go(func() { w.watch(watching) })
	defer watched.Wait()
	defer stop()
	plan := smokePlan()
	if !w.smoke {
		plan = drawPlan(w.seed, w.duration, w.kinds)
	}
	w.run.Search = searchCommand(w.nodes, plan)
	for i := range plan {
		w.say("planned: %s", &plan[i])
	}
	shown, began := w.progress(ctx), w.now()
	w.disturb(ctx, plan)
	if err := ctx.Err(); err != nil { // what fails from here on, fails because of the interruption
		return err
	}
	w.awaitService(ctx)
	if w.smoke {
		sleep(ctx, began+w.duration-w.now())
	}
	shown()
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.stopAndCollect(ctx)
}

// progress prints a line every 15 seconds until stop is called.
func (w *world) progress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var printing sync.WaitGroup
	printing.Go(func() {
		for sleep(ctx, 15*time.Second) {
			state, err := w.loadState(ctx)
			if err != nil {
				continue // the load did not answer: its container may be paused
			}
			w.mu.Lock()
			faults := len(w.run.Faults)
			w.mu.Unlock()
			fmt.Printf("%4.0f s: %d operations, %d faults over\n", w.now().Seconds(),
				state.Answered, faults)
		}
	})
	return func() { cancel(); printing.Wait() }
}

// awaitService undoes what faults have left behind, and waits until a probe of the load (a write
// and a read) has worked.
func (w *world) awaitService(ctx context.Context) {
	if err := w.healAll(ctx); err != nil {
		w.fail("healing: %v", err)
	}
	if _, err := w.askLoad(ctx, http.MethodPost, "/probe", nil, 2*time.Minute); err != nil {
		w.fail("no service: %v", err)
	}
}

// stopAndCollect stops the clients, and collects what the judge needs: the replicas' hashes and the
// last reads.
func (w *world) stopAndCollect(ctx context.Context) error {
	if _, err := w.askLoad(ctx, http.MethodPost, "/over", nil, 2*time.Minute); err != nil {
		w.fail("the clients do not end: %v", err)
	}
	v, missing := w.awaitVerification(ctx, 90*time.Second)
	if missing != "" {
		w.fail("at the end: %s", missing)
	}
	w.run.Hashes = make(map[string]string)
	for _, h := range v.Hashes {
		w.run.Hashes[h.Node] = h.Hash
	}
	w.run.Lasted = record.Duration(w.now())
	for _, f := range w.run.Faults {
		if w.smoke && !f.Effect {
			w.fail("%s had no effect: %s", f.Kind, f.Note)
		}
	}
	if _, err := w.askLoad(ctx, http.MethodPost, "/finish", nil, 5*time.Minute); err != nil {
		w.fail("the reads at the end: %v", err)
		return w.save(ctx)
	}
	return nil
}

// save has the load write the history as far as it goes. It is called when the load could not
// finish.
func (w *world) save(ctx context.Context) error {
	_, err := w.askLoad(ctx, http.MethodPost, "/save", nil, time.Minute)
	return err
}

// saveLogs writes what the containers printed into the report's folder.
func (w *world) saveLogs(ctx context.Context) {
	for _, c := range w.containers() {
		text := c.logs(ctx, 1_000_000)
		if err := os.WriteFile(filepath.Join(w.folder, c.name+".log"), []byte(text),
			0o644); err != nil {
			w.say("%v", err)
		}
	}
}

// dropData removes the data folders of the machines and of the broker. After a run without
// violations they are not needed.
func (w *world) dropData() error {
	var errs error
	for _, m := range w.machines {
		errs = errors.Join(errs, os.RemoveAll(m.folder))
	}
	return errors.Join(errs, os.RemoveAll(filepath.Join(w.folder, "broker")))
}
