package report

import (
	"fmt"
	"image/color"
	"math"
	"time"

	"holdfast/resp"
	"holdfast/test/chaos/record"
	"holdfast/test/history"
)

// plot is a picture over time: faults as bars on top and bands below, leader changes as dashes.
type plot struct {
	*canvas
	lasted                   time.Duration
	left, right, top, bottom int // of the field
}

const (
	plotWidth  = 1800
	fieldSize  = 420
	rowHeight  = 18
	leftMargin = 90
)

func black() color.Color { return rgba(30, 30, 30, 255) }
func grey() color.Color  { return rgba(200, 200, 200, 255) }

// placed is a fault with the row of its bar and label.
type placed struct {
	record.Fault
	row int
}

// place puts faults into rows in which their labels do not overlap.
func place(faults []record.Fault, x func(time.Duration) int, width func(string) int) (list []placed, rows int) {
	var ends []int // of the rows
	for _, f := range faults {
		from := min(x(time.Duration(f.From)), plotWidth-20-width(f.Kind)) // a label at the end begins before its bar
		until := from + width(f.Kind) + 12
		until = max(until, x(time.Duration(f.To))+6)
		row := 0
		for row < len(ends) && ends[row] > from {
			row++
		}
		if row == len(ends) {
			ends = append(ends, 0)
		}
		ends[row] = until
		list = append(list, placed{f, row})
	}
	return list, len(ends)
}

// newPlot draws what all plots have in common.
func (r *Report) newPlot(title string) (*plot, error) {
	probe, err := newCanvas(1, 1)
	if err != nil {
		return nil, err
	}
	p := &plot{lasted: max(r.lasted, time.Second), left: leftMargin, right: plotWidth - 20}
	faults, rows := place(r.run.Faults, p.x, probe.width)
	p.top = 40 + rows*rowHeight + 8
	p.bottom = p.top + fieldSize
	if p.canvas, err = newCanvas(plotWidth, p.bottom+50); err != nil {
		return nil, err
	}
	p.text(p.left, 24, title, black())
	for _, f := range faults {
		from, to, y := p.x(time.Duration(f.From)), p.x(time.Duration(f.To)), 40+f.row*rowHeight
		shade := rgba(230, 140, 40, 28)
		if !f.Effect {
			shade = rgba(160, 160, 160, 20)
		}
		p.fill(from, p.top, to, p.bottom, shade)
		p.fill(from, y, to, y+rowHeight-3, rgba(230, 140, 40, 110))
		p.text(min(from+3, p.right-p.width(f.Kind)), y+rowHeight-5, f.Kind, black())
	}
	for _, l := range r.run.Leaders {
		p.dashes(p.x(time.Duration(l.At)), p.top, p.bottom, rgba(120, 40, 140, 200))
	}
	step := tick(p.lasted)
	for at := time.Duration(0); at <= p.lasted; at += step {
		p.fill(p.x(at), p.bottom, p.x(at), p.bottom+6, black())
		p.text(p.x(at)-12, p.bottom+24, at.String(), black())
	}
	p.fill(p.left, p.bottom, p.right, p.bottom, black())
	p.fill(p.left, p.top, p.left, p.bottom, black())
	return p, nil
}

// tick returns a distance between the marks of the time axis.
func tick(lasted time.Duration) time.Duration {
	for _, step := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute} {
		if lasted/step <= 15 {
			return step
		}
	}
	return 30 * time.Minute
}

func (p *plot) x(at time.Duration) int {
	return p.left + int(float64(p.right-p.left)*float64(at)/float64(p.lasted))
}

// level draws a mark of the vertical axis.
func (p *plot) level(y int, label string) {
	p.fill(p.left, y, p.right, y, grey())
	p.text(p.left-p.width(label)-8, y+5, label, black())
}

// legend names colours.
func (p *plot) legend(entries ...legend) {
	x := p.left + 420
	for _, e := range entries {
		p.fill(x, 13, x+14, 25, e.colour)
		p.text(x+20, 24, e.name, black())
		x += 40 + p.width(e.name)
	}
}

type legend struct {
	name   string
	colour color.Color
}

// outcome returns what became of an operation, for people, and how it is drawn.
func outcome(o *history.Op) legend {
	switch {
	case !o.Known:
		return legend{"unknown", rgba(210, 30, 40, 220)}
	case o.Reply.Kind == resp.ReplyError:
		return legend{"refused", rgba(240, 150, 0, 200)}
	default:
		return legend{"answered", rgba(30, 90, 190, 90)}
	}
}

// latency draws every operation as a point.
func (r *Report) latency(path string) error {
	p, err := r.newPlot("Latency of each operation, by its call")
	if err != nil {
		return err
	}
	const lowest, highest = 100 * time.Microsecond, 20 * time.Second
	y := func(d time.Duration) int {
		share := math.Log(float64(max(d, lowest))/float64(lowest)) / math.Log(float64(highest)/float64(lowest))
		return p.bottom - int(share*float64(p.bottom-p.top))
	}
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second} {
		p.level(y(d), d.String())
	}
	for _, o := range r.history.Ops {
		if o.Final {
			continue // nobody is disturbed any more
		}
		took := o.Replied - o.Call
		if !o.Known {
			took = 12 * time.Second // longer than anybody waits
		}
		x, at := p.x(o.Call), y(min(took, highest))
		p.fill(x-1, at-1, x+2, at+2, outcome(o).colour)
	}
	p.legend(
		legend{"answered", rgba(30, 90, 190, 255)}, legend{"refused", rgba(240, 150, 0, 255)}, legend{"unknown (drawn at 12 s)", rgba(210, 30, 40, 255)},
		legend{"fault", rgba(230, 140, 40, 160)}, legend{"a node begins to lead", rgba(120, 40, 140, 255)},
	)
	return p.save(path)
}

// throughput draws how many operations were answered in each second.
func (r *Report) throughput(path string) error {
	p, err := r.newPlot("Operations answered in each second")
	if err != nil {
		return err
	}
	seconds := make([]int, int(p.lasted/time.Second)+1)
	most := 10
	for _, o := range r.history.Ops {
		if second := int(o.Replied / time.Second); o.Known && !o.Final && second < len(seconds) {
			seconds[second]++
			most = max(most, seconds[second])
		}
	}
	y := func(n int) int { return p.bottom - n*(p.bottom-p.top-10)/most }
	for i := range 5 {
		p.level(y(most*i/4), fmt.Sprint(most*i/4))
	}
	for second := 1; second < len(seconds); second++ {
		at := func(s int) time.Duration { return time.Duration(s)*time.Second + time.Second/2 }
		p.line(p.x(at(second-1)), y(seconds[second-1]), p.x(min(at(second), p.lasted)), y(seconds[second]), rgba(30, 90, 190, 255))
	}
	p.legend(legend{"fault", rgba(230, 140, 40, 160)}, legend{"a node begins to lead", rgba(120, 40, 140, 255)})
	return p.save(path)
}

// nodeColours are of the nodes, in their order.
func nodeColours() []color.Color {
	return []color.Color{
		rgba(30, 90, 190, 255), rgba(220, 60, 50, 255), rgba(40, 150, 70, 255), rgba(230, 140, 20, 255), rgba(130, 60, 160, 255),
		rgba(20, 160, 170, 255), rgba(120, 90, 60, 255), rgba(200, 60, 140, 255), rgba(90, 90, 90, 255),
	}
}

// memory draws what each node used.
func (r *Report) memory(path string) error {
	p, err := r.newPlot("Resident memory of each node")
	if err != nil {
		return err
	}
	most, colours := int64(64<<20), make(map[string]color.Color)
	var entries []legend
	for _, s := range r.run.Samples {
		most = max(most, s.Resident)
	}
	for i := range r.run.Nodes {
		id := fmt.Sprintf("n%d", i+1)
		colours[id] = nodeColours()[i%len(nodeColours())]
		entries = append(entries, legend{id, colours[id]})
	}
	y := func(n int64) int { return p.bottom - int(n*int64(p.bottom-p.top-10)/most) }
	for i := range int64(5) {
		p.level(y(most*i/4), fmt.Sprintf("%d MiB", most*i/4>>20))
	}
	for _, s := range r.run.Samples {
		x, at := p.x(time.Duration(s.At)), y(s.Resident)
		p.fill(x, at, x+3, at+3, colours[s.Node])
	}
	p.legend(entries...)
	return p.save(path)
}
