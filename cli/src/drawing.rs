//! Pictures as SVG.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours that colour-blind people can tell apart (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 3] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn<'a> = Result<(), Box<dyn Error + 'a>>;

/// Returns an SVG of this size, which `draw` draws on a white area.
pub(crate) fn svg(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>,
) -> Result<String, String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = || -> Drawn<'_> {
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()?;
        Ok(())
    };
    drawn().map_err(|error| error.to_string())?;
    drop(root);
    Ok(svg)
}
