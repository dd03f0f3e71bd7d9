package role

// clientShares counts what each client has under way at a leader, so that one client cannot take all the room there is. The zero value
// has no room. It is not safe for concurrent use.
type clientShares struct {
	count    int // most requests of one client
	bytes    int // most bytes of one client's requests; a single request always fits
	byClient map[string]clientShare
}

type clientShare struct{ count, bytes int }

// byteShare is the part of Config.HoldBytes that one client may take.
const byteShare = 4

func newClientShares(config *Config) clientShares {
	return clientShares{count: config.RequestsPerClient, bytes: config.HoldBytes / byteShare, byClient: make(map[string]clientShare)}
}

// full reports whether another request of a client, of a size in bytes, would be more than its share.
func (s *clientShares) full(client string, size int) bool {
	used := s.byClient[client]
	return used.count >= s.count || used.count > 0 && used.bytes+size > s.bytes
}

func (s *clientShares) add(client string, size int) {
	used := s.byClient[client]
	s.byClient[client] = clientShare{used.count + 1, used.bytes + size}
}

func (s *clientShares) remove(client string, size int) {
	used := s.byClient[client]
	if used.count == 1 {
		delete(s.byClient, client)
		return
	}
	s.byClient[client] = clientShare{used.count - 1, used.bytes - size}
}
