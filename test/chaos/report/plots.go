package report

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"holdfast/resp"
	"holdfast/test/chaos/record"
)

// Sizes of a plot.
const (
	plotWidth   vg.Length = 1350
	fieldHeight vg.Length = 360 // the data, the axes and the title
	rowHeight   vg.Length = 14  // the bar of a fault
	legendWidth vg.Length = 170
)

// timeline is a plot over the time of a run. Faults are bars above the data and bands over it; the
// beginning of a leadership is a dashed line.
type timeline struct {
	*plot.Plot
	legend  plot.Legend // drawn beside the data; the plot's own legend would cover the data
	faults  []record.Fault
	leaders []record.Leading
}

func rgba(r, g, b, alpha uint8) color.Color { return color.NRGBA{r, g, b, alpha} }

// newTimeline returns a plot without data. x is in seconds.
func (r *Report) newTimeline(title, y string) *timeline {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "seconds since the start", y
	p.X.Min, p.X.Max = 0, max(r.lasted, time.Second).Seconds()
	t := &timeline{p, plot.NewLegend(), r.run.Faults, r.run.Leaders}
	t.legend.Top, t.legend.Left, t.legend.Padding = true, true, 3
	t.legend.Add("fault", box(rgba(230, 140, 40, 160)))
	t.legend.Add("a node begins to lead", leaderLine())
	return t
}

// box is the sign of a colour in a legend.
func box(with color.Color) *plotter.Scatter {
	return &plotter.Scatter{GlyphStyle: glyph(with, 4)}
}

func glyph(with color.Color, radius vg.Length) draw.GlyphStyle {
	return draw.GlyphStyle{Color: with, Radius: radius, Shape: draw.BoxGlyph{}}
}

func leaderLine() *plotter.Line {
	return &plotter.Line{LineStyle: draw.LineStyle{
		Color: rgba(120, 40, 140, 200), Width: 1,
		Dashes: []vg.Length{3, 3},
	}}
}

// placed is a fault with the row of its bar and label.
type placed struct {
	record.Fault
	row   int
	label vg.Length // x position at which the label begins
}

// place puts faults into rows in which their labels do not overlap. x returns the position of a
// time, width the width of a label. A label that would extend past the right edge begins before its
// bar.
func place(faults []record.Fault, x func(record.Duration) vg.Length, width func(string) vg.Length,
	right vg.Length,
) (list []placed, rows int) {
	const gap = 6
	var ends []vg.Length // x position from which each row is free
	for _, f := range faults {
		from := min(x(f.From), right-width(f.Kind))
		until := max(from+width(f.Kind), x(f.To)) + gap
		row := 0
		for row < len(ends) && ends[row] > from {
			row++
		}
		if row == len(ends) {
			ends = append(ends, 0)
		}
		ends[row] = until
		list = append(list, placed{f, row, from})
	}
	return list, len(ends)
}

// save writes the plot as a PNG file.
func (t *timeline) save(path string) error {
	label := text.Style{
		Font: t.X.Label.TextStyle.Font, Color: color.Black,
		Handler: plot.DefaultTextHandler,
	}
	label.Font.Size = 9
	field := draw.Canvas{Rectangle: vg.Rectangle{
		Min: vg.Point{X: 10, Y: 5},
		Max: vg.Point{X: plotWidth - legendWidth, Y: fieldHeight},
	}}
	data := t.DataCanvas(field)
	x := func(at record.Duration) vg.Length { return data.X(t.X.Norm(seconds(at))) }
	list, rows := place(t.faults, x, label.Width, data.Max.X)
	picture := vgimg.New(plotWidth, fieldHeight+vg.Length(rows+1)*rowHeight)
	all := draw.New(picture)
	field.Canvas, data.Canvas = all.Canvas, all.Canvas
	t.Draw(field)
	t.legend.Draw(draw.Crop(all, plotWidth-legendWidth+10, 0, 0, fieldHeight-all.Max.Y))
	for _, f := range list {
		shade := rgba(230, 140, 40, 28)
		if !f.Effect {
			shade = rgba(160, 160, 160, 20)
		}
		from, to := x(f.From), max(min(x(f.To), data.Max.X), x(f.From)+1)
		bottom := field.Max.Y + vg.Length(f.row)*rowHeight
		all.FillPolygon(shade, rectangle(from, data.Min.Y, to, data.Max.Y))
		all.FillPolygon(rgba(230, 140, 40, 110), rectangle(from, bottom, to, bottom+rowHeight-2))
		all.FillText(label, vg.Point{X: f.label, Y: bottom + 3}, f.Kind)
	}
	for _, l := range t.leaders {
		data.StrokeLine2(leaderLine().LineStyle, x(l.At), data.Min.Y, x(l.At), data.Max.Y)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: picture}.WriteTo(file)
	return errors.Join(err, file.Close())
}

func seconds(d record.Duration) float64 { return time.Duration(d).Seconds() }

func rectangle(x0, y0, x1, y1 vg.Length) []vg.Point {
	return []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}

// scatter adds points to the plot, and their name and colour to the legend.
func (t *timeline) scatter(name string, points plotter.XYs, with color.Color) {
	t.Add(&plotter.Scatter{XYs: points, GlyphStyle: glyph(with, 1)})
	t.legend.Add(name, box(with))
}

// latency draws every operation as a point.
func (r *Report) latency(path string) error {
	// seconds; a later reply is drawn at highest
	const lowest, highest, unknown = 0.0001, 20.0, 30.0
	var answered, refused, unanswered plotter.XYs
	for _, o := range r.history.Ops {
		at := o.Call.Seconds()
		took := min(max((o.Replied-o.Call).Seconds(), lowest), highest)
		switch {
		case o.Final: // sent after the last fault, when nobody is disturbed any more
		case !o.Known:
			unanswered = append(unanswered, plotter.XY{X: at, Y: unknown})
		case o.Reply.Kind == resp.ReplyError:
			refused = append(refused, plotter.XY{X: at, Y: took})
		default:
			answered = append(answered, plotter.XY{X: at, Y: took})
		}
	}
	p := r.newTimeline("Latency of each operation, by its call", "seconds")
	p.Y.Min, p.Y.Max, p.Y.Scale, p.Y.Tick.Marker = lowest, unknown, plot.LogScale{},
		plot.LogTicks{Prec: -1}
	p.scatter("no error", answered, rgba(30, 90, 190, 90))
	p.scatter("error", refused, rgba(240, 150, 0, 200))
	p.scatter("no reply (drawn at 30 s)", unanswered, rgba(210, 30, 40, 220))
	return p.save(path)
}

// throughput draws how many replies came in each second.
func (r *Report) throughput(path string) error {
	answered := make(plotter.XYs, int(r.lasted/time.Second)+1)
	for second := range answered {
		answered[second].X = min(float64(second)+0.5, r.lasted.Seconds())
	}
	for _, o := range r.history.Ops {
		if second := int(o.Replied / time.Second); o.Known && !o.Final && second < len(answered) {
			answered[second].Y++
		}
	}
	p := r.newTimeline("Replies in each second", "replies")
	p.Y.Min = 0
	p.Add(&plotter.Line{
		XYs:       answered,
		LineStyle: draw.LineStyle{Color: rgba(30, 90, 190, 255), Width: 1.5},
	})
	return p.save(path)
}

// nodeColours returns the colours of the nodes n1, n2 and so on.
func nodeColours() []color.Color {
	return []color.Color{
		rgba(30, 90, 190, 255), rgba(220, 60, 50, 255), rgba(40, 150, 70, 255),
		rgba(230, 140, 20, 255), rgba(130, 60, 160, 255),
		rgba(20, 160, 170, 255), rgba(120, 90, 60, 255), rgba(200, 60, 140, 255),
		rgba(90, 90, 90, 255),
	}
}

// memory draws the resident memory of each node.
func (r *Report) memory(path string) error {
	used := make(map[string]plotter.XYs)
	for _, s := range r.run.Samples {
		used[s.Node] = append(used[s.Node],
			plotter.XY{X: seconds(s.At), Y: float64(s.Resident) / (1 << 20)})
	}
	p := r.newTimeline("Resident memory of each node", "MiB")
	p.Y.Min, p.Y.Max = 0, 64
	for i := range r.run.Nodes {
		id := fmt.Sprintf("n%d", i+1)
		p.scatter(id, used[id], nodeColours()[i%len(nodeColours())])
	}
	return p.save(path)
}
