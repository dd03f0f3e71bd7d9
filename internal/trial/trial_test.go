package trial

import "testing"

// Without an admin API or a health port there is no address to show.
func TestWhatDoesNotListenHasNoAddress(t *testing.T) {
	c := &Cluster{}
	if c.Admin() != "" || c.Health() != "" {
		t.Errorf("admin %q, health %q", c.Admin(), c.Health())
	}
}
