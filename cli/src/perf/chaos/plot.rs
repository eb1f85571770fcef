//! `invar perf --chaos --plot`: the bandwidth over time, and when links were down.

use std::time::Duration;

use plotters::prelude::*;

use super::Outage;
use super::hosts::LINKS;
use crate::drawing::{Area, COLOURS, Drawn, svg};
use crate::failure::Failure;
use crate::output::OutputFile;

const SIZE: (u32, u32) = (900, 400);
/// The part of the height that shows the links.
const BAND: f64 = 0.12;

/// Writes an SVG of the bandwidth at the ends of the parts of the time, in GB/s.
pub(super) fn write(
    file: &mut OutputFile,
    rates: &[(Duration, f64)],
    outages: &[Outage],
) -> Result<(), Failure> {
    let svg = svg(SIZE, |root| draw(root, rates, outages));
    file.replace(&svg.map_err(Failure::new)?)
}

fn draw<'a>(root: &Area<'a>, rates: &[(Duration, f64)], outages: &[Outage]) -> Drawn<'a> {
    let end = rates.last().map_or(0.0, |(time, _)| time.as_secs_f64());
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.001, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(root)
        .caption("invar perf --chaos: one connection over two links", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, -BAND * most..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("seconds")
        .y_desc("GB/s")
        .y_label_formatter(&|y| if *y < 0.0 { String::new() } else { format!("{y:.2}") })
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for link in 0..LINKS {
        // The links lie below the bandwidth, one above the other.
        let height = BAND * most / LINKS as f64;
        let top = -height * link as f64;
        let of_link = outages.iter().filter(|outage| outage.link == link);
        let down = of_link.map(|Outage { time, .. }| {
            let [from, to] = [time.start, time.end].map(|at| at.as_secs_f64().min(end));
            Rectangle::new(
                [(from, top - 0.1 * height), (to, top - 0.9 * height)],
                COLOURS[1 + link].filled(),
            )
        });
        let colour = COLOURS[1 + link];
        chart
            .draw_series(down)?
            .label(format!("link {link} is down"))
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 18, y + 4)], colour.filled()));
    }
    let points = rates.iter().map(|(time, rate)| (time.as_secs_f64(), *rate));
    chart
        .draw_series(LineSeries::new(points, COLOURS[0].stroke_width(2)))?
        .label("bandwidth")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], COLOURS[0].stroke_width(2)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_the_bandwidth_and_each_outage() {
        let seconds = Duration::from_secs;
        let rates = [(seconds(1), 1.0), (seconds(2), 0.5), (seconds(3), 1.0)];
        let outage = |link, time| Outage { link, time };
        let outages = [outage(0, seconds(1)..seconds(2)), outage(1, seconds(2)..Duration::MAX)];
        let rectangles = |outages: &[Outage]| {
            let svg = svg(SIZE, |root| draw(root, &rates, outages)).unwrap();
            assert!(svg.contains("link 1 is down") && svg.contains("bandwidth"), "{svg}");
            svg.matches("<rect").count()
        };
        assert_eq!(rectangles(&outages) - rectangles(&[]), outages.len());
        // A run that ends at once.
        svg(SIZE, |root| draw(root, &[], &[])).unwrap();
    }
}
