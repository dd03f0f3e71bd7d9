package integration

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/testwait"
)

// duringLeaderChanges runs clients of a cluster whose leader receives the requests, while the
// leadership is transferred again and again. ask sends one request, and returns what is wrong with
// what came.
func duringLeaderChanges(t *testing.T, ask func(p *peer, number int) (fault string)) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, broker.address)
	over := make(chan struct{})
	var asked atomic.Int64
	var asking sync.WaitGroup
	for i := range 4 {
		p := connect(t, &target{address: broker.address}, fmt.Sprintf("asker-%d", i), false)
		asking.Go(func() {
			for number := 0; ; number++ {
				select {
				case <-over:
					return
				default:
				}
				if fault := ask(p, number); fault != "" {
					t.Errorf("client %d, request %d: %s", i, number, fault)
					return
				}
				asked.Add(1)
			}
		})
	}
	stop := sync.OnceFunc(func() {
		close(over)
		asking.Wait()
	})
	defer stop() // also if a wait below ends the test
	const transfers = 12
	for range transfers {
		testwait.Until(t, "the leadership is transferred", func() bool {
			_, code := m.leader(t).operate(t, "raft", "transfer-leader")
			return code == 0
		})
		before := asked.Load()
		testwait.Until(t, "the clients go on",
			func() bool { return asked.Load() >= before+40 || t.Failed() })
	}
	stop()
	t.Logf("%d requests during %d transfers", asked.Load(), transfers)
}

// answer waits for a reply to a request. Around a change of the leader, earlier ones may come
// again.
func (p *peer) answer(correlation string) (message *paho.Publish, fault string) {
	for limit := time.After(wait); ; {
		select {
		case message = <-p.inbox:
			if string(message.Properties.CorrelationData) == correlation {
				return message, ""
			}
		case <-limit:
			return nil, "no answer"
		}
	}
}

// † A lone SCAN that is under way when the leader changes is answered, and not refused as overload.
func TestScanIsAnsweredAcrossLeaderChanges(t *testing.T) {
	duringLeaderChanges(t, func(p *peer, _ int) string {
		message, fault := p.answer(p.publish(request{payload: array("SCAN", "*")}))
		if fault == "" && strings.HasPrefix(string(message.Payload), "-") {
			fault = string(message.Payload)
		}
		return fault
	})
}

// † A request that is sent again after its reply is answered again, with the same reply, also while
// the leader changes.
func TestCopyAfterTheReplyIsAnsweredAcrossLeaderChanges(t *testing.T) {
	duringLeaderChanges(t, func(p *peer, number int) string {
		set := request{
			payload: array("SET", p.id, fmt.Sprint(number)), properties: []string{"__ts", now()},
			correlation: fmt.Sprintf("%s %8d", p.id, number), expiry: 30,
		}
		version := ""
		for range 3 {
			message, fault := p.answer(p.publish(set))
			switch {
			case fault != "":
				return fault
			case string(message.Payload) != "+OK\r\n":
				return fmt.Sprintf("%q", message.Payload)
			case version != "" && timestamp(message) != version:
				return "another version: " + timestamp(message)
			}
			version = timestamp(message)
		}
		return ""
	})
}
