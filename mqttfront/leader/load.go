package leader

import (
	"time"

	"holdfast/fsm"
)

// load is what a leader has under way: the requests that the store has, or whose replies the broker
// does not have yet.
type load struct {
	requests int
	bytes    int // that these keep in memory
	clients  clientShares
	scans    scans
	// patterns is the weight of all patterns that are watched (fsm.Machine.PatternWeight), as it
	// was up to a second ago.
	patterns int
	// turnaround is what requests took lately from their arrival until the broker had the reply: a
	// moving average.
	turnaround time.Duration
}

func newLoad(config *Config) load {
	return load{
		clients: newClientShares(config),
		scans:   scans{byClient: make(map[string]scanCount)},
	}
}

// add counts a request as under way. weight is as how many operations it counts in its client's
// share (weightOf).
func (u *load) add(r *Request, weight int) {
	u.requests++
	u.bytes += r.Size
	r.weight = weight
	u.clients.add(r.clientKey(), r.weight, r.Size)
}

// remove ends what add began.
func (u *load) remove(r *Request) {
	u.requests--
	u.bytes -= r.Size
	u.clients.remove(r.clientKey(), r.weight, r.Size)
	u.scans.move(r.clientKey(), &r.scan, scanNone)
}

// overloadReason returns the reason to refuse a request, as the metric of refusals names it, or an
// empty string: "age" if it waited for longer than limit, "client_share" if its client has too much
// under way.
func (u *load) overloadReason(r *Request, weight int, waited, limit time.Duration) string {
	switch {
	case waited > limit:
		return "age"
	case u.clients.full(r.clientKey(), weight, r.Size):
		return "client_share"
	default:
		return ""
	}
}

// stepsPerOperation is how many bytes every member may compare with the patterns of watches, to
// find who is notified of a change, for what counts as one more operation: about as long as the
// rest of a SET takes.
const stepsPerOperation = 25_000

// weightOf returns how many operations a request counts as: a transaction as many as it has, and a
// change of a long key for more where many patterns are watched. Otherwise one client that changes
// keys of 4 KB could keep all members busy with patterns.
func (u *load) weightOf(r *Request) int {
	if len(r.Command.Operations) == 0 {
		return 1 + u.matching(&r.Command)
	}
	weight := len(r.Command.Operations)
	for i := range r.Command.Operations {
		weight += u.matching(&r.Command.Operations[i])
	}
	return weight
}

// matching returns as how many operations it counts to find the watches of patterns for a change.
func (u *load) matching(change *fsm.Command) int {
	return change.MatchCost(u.patterns) / stepsPerOperation
}

// clientShares counts what each client has under way at a leader, so that one client cannot take
// all the room there is. The zero value has no room. It is not safe for concurrent use.
type clientShares struct {
	count    int // most operations of one client's requests; a single request always fits
	bytes    int // most bytes of one client's requests; a single request always fits
	byClient map[string]clientShare
}

type clientShare struct{ count, bytes int }

// scans counts the SCANs that are under way at a leader. Reading a page takes milliseconds, and a
// page keeps up to 256 KiB until the broker has it.
type scans struct {
	all      scanCount
	byClient map[string]scanCount
}

type scanCount struct {
	reading int // SCANs that the store has
	pages   int // these, and the SCANs whose page is being delivered
}

// maxScans and maxScansPerClient bound scanCount.reading, maxPages and maxPagesPerClient bound
// scanCount.pages.
const (
	maxScans          = 64
	maxScansPerClient = 8
	maxPages          = 256
	maxPagesPerClient = 32
)

// full reports whether another SCAN of a client would be too many.
func (s *scans) full(client string) bool {
	own := s.byClient[client]
	return s.all.reading >= maxScans || s.all.pages >= maxPages ||
		own.reading >= maxScansPerClient || own.pages >= maxPagesPerClient
}

// move changes the stage of a SCAN of a client.
func (s *scans) move(client string, stage *scanStage, to scanStage) {
	own := s.byClient[client]
	for _, count := range []*scanCount{&s.all, &own} {
		count.add(*stage, -1)
		count.add(to, 1)
	}
	*stage = to
	if own == (scanCount{}) {
		delete(s.byClient, client)
	} else {
		s.byClient[client] = own
	}
}

func (c *scanCount) add(stage scanStage, n int) {
	if stage == scanReading {
		c.reading += n
	}
	if stage != scanNone {
		c.pages += n
	}
}

// byteShareDivisor sets how many bytes the requests of one client may take: Config.RequestBytes /
// byteShareDivisor. Eight transactions of 15 MiB of one client would make all others wait for
// seconds.
const byteShareDivisor = 8

func newClientShares(config *Config) clientShares {
	return clientShares{
		count: config.RequestsPerClient,
		bytes: config.RequestBytes / byteShareDivisor, byClient: make(map[string]clientShare),
	}
}

// full reports whether another request of a client, of some operations and bytes, would be more
// than its share.
func (s *clientShares) full(client string, operations, size int) bool {
	used := s.byClient[client]
	return s.count == 0 || used.count > 0 &&
		(used.count+operations > s.count || used.bytes+size > s.bytes)
}

func (s *clientShares) add(client string, operations, size int) {
	used := s.byClient[client]
	s.byClient[client] = clientShare{used.count + operations, used.bytes + size}
}

func (s *clientShares) remove(client string, operations, size int) {
	used := s.byClient[client]
	if used.count <= operations {
		delete(s.byClient, client)
		return
	}
	s.byClient[client] = clientShare{used.count - operations, used.bytes - size}
}
