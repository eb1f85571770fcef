//! The trace as a picture.

use invar_core::recorder::EventKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Span, SpanKind, TraceRow, TracedProcess};
use crate::drawing::{self, Area, COLOURS, Drawn};
use crate::failure::line;

/// Pixels of the whole width, and of the parts beside the time line.
const WIDTH: i32 = 900;
const TITLES: i32 = 220;
const RIGHT: i32 = 16;
/// Pixels of the legend, of a process' name, of a row, and of the axis.
const LEGEND: i32 = 30;
const PROCESS: i32 = 20;
const ROW: i32 = 28;
const AXIS: i32 = 40;
/// Pixels of a bar, of which a row has two.
const BAR: i32 = 12;
/// Pixels of a character, by which texts are cut.
const CHAR: i32 = 6;

/// The kinds of events that are marked, each with its mark. The legend has this order.
const MARKS: [(EventKind, &str); 7] = [
    (EventKind::Opened, "○"),
    (EventKind::Closed, "●"),
    (EventKind::Stall, "▲"),
    (EventKind::Error, "✕"),
    (EventKind::Fence, "■"),
    (EventKind::RailDown, "▽"),
    (EventKind::RailUp, "△"),
];

/// Returns an SVG with a row for each end of a connection and each rank, below its process.
pub(super) fn svg(all: &[TracedProcess]) -> Result<String, String> {
    let rows: usize = all.iter().map(|process| process.rows.len()).sum();
    let height = LEGEND + PROCESS * all.len() as i32 + ROW * rows as i32 + AXIS;
    drawing::svg((WIDTH as u32, height as u32), |root| draw(root, all))
}

fn draw<'a>(root: &Area<'a>, all: &[TracedProcess]) -> Drawn<'a> {
    let rows = || all.iter().flat_map(|process| &process.rows);
    let ends = rows().flat_map(|row| {
        let spans = row.spans.iter().map(|span| span.ts + span.dur);
        spans.chain(row.events.iter().map(|(at, _)| *at))
    });
    let end_us = ends.fold(1.0, f64::max);
    let (unit, unit_us) = match end_us {
        1e6.. => ("seconds", 1e6),
        1e3.. => ("milliseconds", 1e3),
        _ => ("microseconds", 1.0),
    };
    let mut chart = ChartBuilder::on(root)
        .margin_top(LEGEND)
        .margin_right(RIGHT)
        .x_label_area_size(AXIS)
        .y_label_area_size(TITLES)
        .build_cartesian_2d(0.0..end_us / unit_us, 0.0..1.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_desc(unit)
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .draw()?;
    // A damaged record may have any time.
    let x = |at_us: f64| chart.backend_coord(&(at_us.clamp(0.0, end_us) / unit_us, 0.0)).0;
    let mut y = LEGEND;
    for TracedProcess { name, clock, rows } in all {
        root.draw(&PathElement::new([(0, y), (WIDTH, y)], BLACK.mix(0.3)))?;
        text(root, &format!("{name}, {clock}"), (4, y + PROCESS / 2), HPos::Left, (12, BLACK))?;
        y += PROCESS;
        for row in rows {
            draw_row(root, row, y, &x)?;
            y += ROW;
        }
    }
    legend(root, &rows().collect::<Vec<_>>())
}

/// Draws operations and recoveries above waits, and marks over both.
fn draw_row<'a>(root: &Area<'a>, row: &TraceRow, y: i32, x: &impl Fn(f64) -> i32) -> Drawn<'a> {
    let title = cut(&row.title, TITLES - 16);
    text(root, &title, (16, y + ROW / 2), HPos::Left, (12, BLACK))?;
    for Span { kind, name, ts, dur, .. } in &row.spans {
        let top = if *kind == SpanKind::Wait { y + 1 + BAR } else { y + 1 };
        let (from, to) = (x(*ts), x(ts + dur));
        // A gap divides one operation from the next, and a short span shows, too.
        let bar = [(from, top), ((to - 1).max(from + 1), top + BAR)];
        root.draw(&Rectangle::new(bar, colour(*kind).filled()))?;
        let name = cut(name, to - from - 4);
        text(root, &name, (from + 3, top + BAR / 2), HPos::Left, (10, WHITE))?;
    }
    for (at, event) in &row.events {
        if let Some((_, mark)) = MARKS.iter().find(|(kind, _)| *kind == event.kind) {
            text(root, mark, (x(*at), y + 1 + BAR), HPos::Center, (15, BLACK))?;
        }
    }
    Ok(())
}

/// Explains the kinds of bars and marks that the rows have.
fn legend<'a>(root: &Area<'a>, rows: &[&TraceRow]) -> Drawn<'a> {
    let (mut x, y) = (4, LEGEND / 2);
    let bars = [
        (SpanKind::Operation, "operation"),
        (SpanKind::Wait, "wait"),
        (SpanKind::Recovery, "recovery"),
    ];
    for (kind, name) in bars {
        if rows.iter().flat_map(|row| &row.spans).any(|span| span.kind == kind) {
            let bar = [(x, y - BAR / 2), (x + 18, y + BAR / 2)];
            root.draw(&Rectangle::new(bar, colour(kind).filled()))?;
            text(root, name, (x + 23, y), HPos::Left, (12, BLACK))?;
            x += 40 + CHAR * name.len() as i32;
        }
    }
    for (kind, mark) in MARKS {
        if rows.iter().flat_map(|row| &row.events).any(|(_, event)| event.kind == kind) {
            text(root, mark, (x + 6, y), HPos::Center, (15, BLACK))?;
            text(root, kind.name(), (x + 16, y), HPos::Left, (12, BLACK))?;
            x += 33 + CHAR * kind.name().len() as i32;
        }
    }
    Ok(())
}

fn colour(kind: SpanKind) -> RGBColor {
    COLOURS[match kind {
        SpanKind::Operation => 0,
        SpanKind::Wait => 1,
        SpanKind::Recovery => 2,
    }]
}

/// Cuts a text to a width. A text that would say nothing is left out.
fn cut(text: &str, width: i32) -> String {
    let room = (width / CHAR).max(0) as usize;
    match text.chars().count() {
        count if count <= room => text.to_owned(),
        _ if room < 8 => String::new(),
        _ => text.chars().take(room - 1).chain(['…']).collect(),
    }
}

fn text<'a>(
    root: &Area<'a>,
    text: &str,
    at: (i32, i32),
    horizontal: HPos,
    (size, colour): (i32, RGBColor),
) -> Drawn<'a> {
    if text.is_empty() {
        return Ok(());
    }
    let style = ("sans-serif", size).into_font().color(&colour);
    let style = style.pos(Pos::new(horizontal, VPos::Center));
    Ok(root.draw(&Text::new(line(&text), at, style))?)
}

#[cfg(test)]
mod tests {
    use invar_core::recorder::Event;
    use serde_json::json;

    use super::*;

    fn span(kind: SpanKind, name: &str, [ts, dur]: [f64; 2]) -> Span {
        Span { kind, name: name.to_owned(), ts, dur, args: json!({}) }
    }

    fn row(title: &str, spans: Vec<Span>, kinds: &[EventKind]) -> TraceRow {
        let event = |kind| Event { at_ns: 0, kind, begun: 0, done: 0, untested: 0, detail: 0 };
        let events = kinds.iter().map(|kind| (5e5, event(*kind))).collect();
        let (name, title, verdict) = (String::new(), title.to_owned(), String::new());
        TraceRow { number: 0, name, title, spans, lanes: Vec::new(), events, verdict }
    }

    fn process(name: &str, rows: Vec<TraceRow>) -> TracedProcess {
        TracedProcess { name: name.to_owned(), clock: "clock of its host".to_owned(), rows }
    }

    /// The texts of an SVG with their heights, from top to bottom.
    fn texts(svg: &str) -> Vec<(i32, &str)> {
        let texts = svg.split("<text ").skip(1).map(|text| {
            let (head, text) = text.split_once('>').unwrap();
            let y = head.split(" y=\"").nth(1).unwrap().split('"').next().unwrap();
            (y.parse().unwrap(), text.split('<').next().unwrap().trim())
        });
        let mut texts: Vec<_> = texts.collect();
        texts.sort_unstable();
        texts
    }

    #[test]
    fn times_of_a_damaged_record_are_drawn_at_the_edge() {
        let damaged = [
            span(SpanKind::Wait, "early", [-1e300, 1e300]),
            span(SpanKind::Wait, "late", [1e300, -1e300]),
        ];
        let whole = span(SpanKind::Operation, "all_reduce", [0.0, 1e6]);
        let rows =
            damaged.into_iter().chain([whole]).map(|span| row("rank 0 of 2", vec![span], &[]));
        assert!(svg(&[process("pid 7 on a", rows.collect())]).unwrap().contains("all_reduce"));
    }

    #[test]
    fn each_process_and_each_of_its_rows_has_a_height_of_its_own_and_its_bars_stand_there() {
        let operation = span(SpanKind::Operation, "all_reduce", [0.0, 1e6]);
        let wait = span(SpanKind::Wait, "waits for rank 1", [2.5e5, 7.5e5]);
        let short = span(SpanKind::Recovery, "recovery", [1e6, 0.0]);
        let rank = row("rank 0 of 2", vec![operation, wait], &[]);
        let marks = [EventKind::Opened, EventKind::Progress, EventKind::Stall];
        let sender = row("sender 1, <soft0> to pid 8", vec![short], &marks);
        let svg = svg(&[process("pid 7 on a", vec![sender, rank]), process("pid 8 on b", vec![])]);
        let svg = svg.unwrap();
        let texts = texts(&svg);
        let height = |name: &str| {
            let found = texts.iter().find(|(_, text)| *text == name);
            found.unwrap_or_else(|| panic!("no {name}: {svg}")).0
        };
        let rows = [
            height("pid 7 on a, clock of its host"),
            height("sender 1, &lt;soft0&gt; to pid 8"),
            height("rank 0 of 2"),
            height("pid 8 on b, clock of its host"),
            height("seconds"),
        ];
        assert!(rows.windows(2).all(|pair| pair[1] - pair[0] >= PROCESS), "{rows:?}");
        // The whole picture, a bar for each of the three spans, and three in the legend.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 3, "{svg}");
        let is_in_rank_row = |name: &str| (height(name) - rows[2]).abs() < ROW / 2;
        assert!(is_in_rank_row("all_reduce") && is_in_rank_row("waits for rank 1"), "{svg}");
        // Once in the legend and once in the row.
        let marked = |mark: &str| texts.iter().filter(|(_, text)| *text == mark).count();
        assert_eq!(["○", "▲", "●"].map(marked), [2, 2, 0]);
        assert!(height("stall reported") < rows[0] && height("recovery") < rows[0]);
    }

    #[test]
    fn a_trace_without_events_and_a_title_of_any_length_can_be_drawn() {
        let title = "x".repeat(999);
        let svg = svg(&[process("pid 7 on a", vec![row(&title, vec![], &[])])]).unwrap();
        assert!(svg.contains("xxx…") && !svg.contains(&title), "{svg}");
    }
}
