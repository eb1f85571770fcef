//! Draws a figure as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Figure, Span, Style, Values};

const SIZE: (u32, u32) = (800, 420);
/// Colours that colour-blind people can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// The share of a row's width that its bars take.
const BARS_SHARE: f64 = 0.8;

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) fn svg(figure: &Figure, values: &Values) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(figure, values, &root).map_err(|error| anyhow!("{error}"))?;
    }
    Ok(svg + "\n")
}

fn draw<'a>(
    figure: &Figure,
    values: &Values,
    root: &Root<'a>,
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    root.fill(&WHITE)?;
    text(root, figure.title, (SIZE.0 as i32 / 2, 8), 20, HPos::Center)?;
    text(root, &values.about, (SIZE.0 as i32 / 2, 32), 13, HPos::Center)?;
    legend(root, &values.series)?;
    let spans = values.rows.iter().flat_map(|(_, spans)| spans.iter().flatten());
    let most = spans.map(|span| span.most).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(root)
        .margin(12)
        .margin_top(80)
        .x_label_area_size(24)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..values.rows.len() as f64, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13))
        .y_label_formatter(&|y| if most < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .y_desc(figure.axis)
        .axis_desc_style(("sans-serif", 14))
        .draw()?;
    for (row, (label, _)) in values.rows.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(row as f64 + 0.5, 0.0));
        text(root, label, (x, y + 8), 13, HPos::Center)?;
    }
    for series in 0..values.series.len() {
        let colour = colour(series);
        let spans = values.rows.iter().enumerate().filter_map(|(row, (_, spans))| {
            Some((row as f64, spans.get(series).copied().flatten()?))
        });
        match figure.style {
            Style::Bars => {
                let width = BARS_SHARE / values.series.len() as f64;
                let left = (1.0 - BARS_SHARE) / 2.0 + series as f64 * width;
                chart.draw_series(spans.map(|(row, span)| {
                    let corners = [(row + left, 0.0), (row + left + width, span.middle())];
                    Rectangle::new(corners, colour.filled())
                }))?;
            }
            Style::Lines => {
                let spans: Vec<(f64, Span)> = spans.map(|(row, span)| (row + 0.5, span)).collect();
                let line = spans.iter().map(|(x, span)| (*x, span.middle()));
                chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
                chart.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
                let ranges = spans.iter().filter(|(_, span)| span.least < span.most);
                chart.draw_series(ranges.map(|(x, span)| {
                    PathElement::new([(*x, span.least), (*x, span.most)], colour.stroke_width(1))
                }))?;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// Draws the names of the series side by side.
fn legend<'a>(root: &Root<'a>, series: &[String]) -> Result<(), Box<dyn std::error::Error + 'a>> {
    const GAP: i32 = 34;
    let widths = series.iter().map(|name| 7 * name.chars().count() as i32 + GAP);
    let mut x = (SIZE.0 as i32 - widths.clone().sum::<i32>()) / 2;
    for ((number, name), width) in series.iter().enumerate().zip(widths) {
        root.draw(&Rectangle::new([(x, 57), (x + 12, 69)], colour(number).filled()))?;
        text(root, name, (x + 18, 56), 14, HPos::Left)?;
        x += width;
    }
    Ok(())
}

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Draws a text whose top is at the point `at`.
fn text<'a>(
    root: &Root<'a>,
    text: &str,
    at: (i32, i32),
    size: i32,
    side: HPos,
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let style = TextStyle::from(("sans-serif", size)).pos(Pos::new(side, VPos::Top));
    root.draw_text(text, &style, at)?;
    Ok(())
}
