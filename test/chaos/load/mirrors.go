package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/resp"
	"holdfast/test/history"
)

// mirrorTopics is the prefix of the topics on which the cluster mirrors all keys, that is,
// publishes their values as retained messages.
const mirrorTopics = "mirror/"

// checkMirrors compares the retained messages that a new subscriber gets with the reads at the end,
// and records each difference. Keys below probe/ and scan/ are not read at the end.
func (s *server) checkMirrors() {
	retained, err := s.retained()
	if err != nil {
		s.load.History.AddOdd("the retained messages at the end were not received: %v", err)
		return
	}
	// the keys that were asked for at the end: one without an answer is not compared
	read, asked := 0, make(map[string]bool)
	for _, o := range s.load.History.Ops {
		if !o.Final || o.Verb != history.Get {
			continue
		}
		asked[o.Key] = true
		if !o.Known || o.Reply.Kind == resp.ReplyError {
			continue
		}
		read++
		version, shown := retained[o.Key]
		// an empty payload removes a retained message
		exists := o.Reply.Kind == resp.ReplyBulk && o.Payload != "$0\r\n\r\n"
		if exists != shown || exists && version != o.Version.String() {
			s.load.History.AddOdd(
				"a mirror shows %s as version %q (there: %v); the read at the end: %s", o.Key,
				version, shown, o)
		}
	}
	for key, version := range retained {
		if !asked[key] && !slices.ContainsFunc([]string{"probe/", "scan/", "bad/"},
			func(unread string) bool { return strings.HasPrefix(key, unread) }) {
			s.load.History.AddOdd("a mirror shows %s as version %q, which no client has written",
				key, version)
		}
	}
	fmt.Printf("mirrors: %d keys were read at the end\n", read)
}

// retained returns the versions of the retained messages below mirrorTopics, by key. It takes them
// as complete when none has come for a while.
func (s *server) retained() (map[string]string, error) {
	const quiet = 3 * time.Second
	c, _, err := dial(s.broker, "late-subscriber", false, []string{mirrorTopics + "#"})
	if err != nil {
		return nil, err
	}
	found := make(map[string]string)
	came := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.receive(func(m *packets.Publish) {
			version := ""
			for _, property := range m.Properties.User {
				if property.Key == "__ts" {
					version = property.Value
				}
			}
			found[strings.TrimPrefix(m.Topic, mirrorTopics)] = version
			select {
			case came <- struct{}{}:
			default:
			}
		})
	}()
	for waiting := true; waiting; {
		select {
		case <-came:
		case <-time.After(quiet):
			waiting = false
		case <-ended:
			return nil, fmt.Errorf("the connection ended after %d messages", len(found))
		}
	}
	c.end()
	<-ended
	return found, nil
}
