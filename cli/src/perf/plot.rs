//! `invar perf --plot`: the results as a picture.

use plotters::prelude::*;

use super::operation::Op;
use super::report::{Header, Row};
use crate::drawing::{Area, COLOURS, Drawn, svg};
use crate::failure::Failure;
use crate::output::OutputFile;
use crate::size::show;

const SIZE: (u32, u32) = (900, 720);

/// Writes an SVG with the bandwidth and the half round trips by size.
pub(super) fn write(file: &mut OutputFile, header: &Header, rows: &[Row]) -> Result<(), Failure> {
    let svg = svg(SIZE, |root| draw(root, &title(header), header.op, rows));
    file.replace(&svg.map_err(Failure::new)?)
}

fn title(header: &Header) -> String {
    let Header { nic, peer_nic, transport, window, op, .. } = header;
    let op = op.name();
    format!("invar perf: {op} from {nic} to {peer_nic}, transport {transport}, window {window}")
}

fn draw<'a>(root: &Area<'a>, title: &str, op: Op, rows: &[Row]) -> Drawn<'a> {
    let (upper, lower) = root.titled(title, ("sans-serif", 18))?.split_vertically(350);
    let of = |value: fn(&Row) -> f64| -> Vec<f64> { rows.iter().map(value).collect() };
    chart(&upper, "GB/s", rows, &[("bandwidth", of(|row| row.algbw_gbytes_per_s))])?;
    let percentiles = [
        ("p50", of(|row| row.latency_us.p50)),
        ("p99", of(|row| row.latency_us.p99)),
        ("p99.9", of(|row| row.latency_us.p999)),
    ];
    chart(&lower, &format!("{}, us", op.latency_is_of()), rows, &percentiles)
}

/// Draws lines over the sizes; both axes are logarithmic.
fn chart<'a>(area: &Area<'a>, unit: &str, rows: &[Row], lines: &[(&str, Vec<f64>)]) -> Drawn<'a> {
    let values = || lines.iter().flat_map(|(_, values)| values).copied().filter(|v| *v > 0.0);
    let least = values().fold(f64::INFINITY, f64::min).min(1e6);
    let most = values().fold(least, f64::max);
    // The sizes are evenly spaced, and their labels are the sizes themselves.
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0..rows.len(), (least * 0.8..most * 1.25).log_scale())?;
    let label = |at: &usize| rows.get(*at).map_or(String::new(), |row| show(row.size));
    chart
        .configure_mesh()
        .x_labels(rows.len().clamp(2, 12))
        .x_label_formatter(&label)
        .y_label_formatter(&|y| if *y < 10.0 { format!("{y:.2}") } else { format!("{y:.0}") })
        .y_desc(unit)
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for ((name, values), colour) in lines.iter().zip(COLOURS) {
        let points = values.iter().copied().enumerate().filter(|(_, value)| *value > 0.0);
        let points: Vec<(usize, f64)> = points.collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::latency::Recorder;
    use super::super::usage::Used;
    use super::*;

    #[test]
    fn every_size_is_in_the_picture() {
        let row = |size| {
            let mut recorder = Recorder::new();
            recorder.record(Duration::from_micros(5));
            let used = Used { elapsed: Duration::from_millis(1), ..Used::default() };
            Row::new(size, [10, 1], used, None, 0, recorder.latency())
        };
        let rows: Vec<Row> = [0, 8, 4096, 1 << 20].map(row).into();
        let svg = svg(SIZE, |root| draw(root, "a title", Op::Read, &rows)).unwrap();
        for text in ["a title", "a whole READ, us", "p99.9", "bandwidth", "4 KiB", "1 MiB"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // A line, and a mark for each of the sizes that have a bandwidth.
        assert!(svg.matches("<circle").count() >= 3 + 4 * 3, "{svg}");
    }
}
