package main

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of a plot, in points.
const (
	plotWidth, plotHeight vg.Length = 780, 420
	legendWidth           vg.Length = 260
)

// series is one line of a plot.
type series struct {
	name   string
	points plotter.XYs
}

func (s *series) add(x, y float64) { s.points = append(s.points, plotter.XY{X: x, Y: y}) }

// chart is a plot with logarithmic axes.
type chart struct {
	title, x, y string
	series      []series
}

// save writes the chart as an SVG file. A point that is not above 0 has no place on the axes and is
// left out.
func (c *chart) save(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, 3
	for i, s := range c.series {
		points := slices.DeleteFunc(slices.Clone(s.points),
			func(at plotter.XY) bool { return at.X <= 0 || at.Y <= 0 })
		if len(points) == 0 {
			continue
		}
		line, scatter, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		line.Color, line.Width, line.Dashes = seriesColour(i), 1.5, plotutil.Dashes(i/7)
		scatter.GlyphStyle = draw.GlyphStyle{
			Color: seriesColour(i), Radius: 2,
			Shape: draw.CircleGlyph{},
		}
		p.Add(line, scatter)
		legend.Add(s.name, line, scatter)
		// an empty axis begins at 0, which has no logarithm
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	}
	widen(&p.X)
	widen(&p.Y)
	canvas := vgsvg.New(plotWidth, plotHeight)
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, 5, -legendWidth, 5, -5))
	legend.Draw(draw.Crop(all, plotWidth-legendWidth+10, 0, 0, -5))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(file)
	return errors.Join(err, file.Close())
}

// widen gives an axis with a single value a length. Gonum would take 1 away from the value, and may
// reach 0, which has no logarithm.
func widen(axis *plot.Axis) {
	if axis.Min == axis.Max {
		axis.Min, axis.Max = axis.Min/2, axis.Max*2
	}
}

// seriesColour returns a colour of Okabe and Ito's palette, which the colour-blind can tell apart.
// The colours repeat after seven.
func seriesColour(i int) color.Color {
	colours := []color.RGBA{
		{A: 255},
		{G: 114, B: 178, A: 255},
		{R: 213, G: 94, A: 255},
		{G: 158, B: 115, A: 255},
		{R: 204, G: 121, B: 167, A: 255},
		{R: 230, G: 159, A: 255},
		{R: 86, G: 180, B: 233, A: 255},
	}
	return colours[i%len(colours)]
}

// throughputChart draws p99 latency against throughput, a line for each system and workload, a
// point for each number of requests under way.
func (c *comparison) throughputChart() *chart {
	title := fmt.Sprintf("p99 latency against throughput, %d members, at %d to %d requests under way",
		c.Nodes, slices.Min(c.outstanding()), slices.Max(c.outstanding()))
	return c.chart(title, "requests per second", "p99, milliseconds", func(p *point) plotter.XY {
		return plotter.XY{X: median(p.Rates), Y: median(p.P99)}
	})
}

// latencyChart draws p50 against the number of requests under way.
func (c *comparison) latencyChart() *chart {
	return c.chart(fmt.Sprintf("p50 latency, %d members", c.Nodes), "requests under way",
		"p50, milliseconds", func(p *point) plotter.XY {
			return plotter.XY{X: float64(p.Outstanding), Y: median(p.P50)}
		})
}

func (c *comparison) chart(title, x, y string, at func(*point) plotter.XY) *chart {
	drawn := &chart{title: title, x: x, y: y}
	for _, name := range c.series() {
		s := series{name: name[0] + ", " + name[1]}
		for _, n := range c.outstanding() {
			if p := c.points[pointKey{name[0], name[1], n}]; p != nil {
				s.points = append(s.points, at(p))
			}
		}
		drawn.series = append(drawn.series, s)
	}
	return drawn
}
