//! `memplan compile --frontier`: the choices between bytes and time.

use comfy_table::{CellAlignment, Table, presets};
use memplan::driver::Point;
use memplan::ir::Module;
use memplan::memory::{Bytes, Target};

use crate::picture;
use crate::screen::Screen;
use crate::time::change_in_percent;

/// The JSON document of a frontier.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct FrontierFile<'a> {
    format: &'static str,
    version: u32,
    module: &'a str,
    target: &'a str,
    points: Vec<PointEntry>,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct PointEntry {
    total: u64,
    temp: u64,
    seconds: f64,
    variant: &'static str,
    what: &'static str,
    fusion: Option<&'static str>,
}

/// The points as JSON, from fewest bytes to least time.
pub(crate) fn json(module: &Module, target: &Target, points: &[Point]) -> String {
    let entry = |point: &Point| PointEntry {
        total: point.price.total.0,
        temp: point.planned.plan.totals.temp.0,
        seconds: point.price.seconds,
        variant: point.variant,
        what: point.description,
        fusion: point.fusion,
    };
    let file = FrontierFile {
        format: "memplan.frontier",
        version: 1,
        module: &module.name,
        target: &target.name,
        points: points.iter().map(entry).collect(),
    };
    serde_json::to_string_pretty(&file).expect("documents have only string keys") + "\n"
}

/// A picture, and a row for each point.
pub(crate) fn render(module: &Module, target: &Target, points: &[Point], screen: Screen) -> String {
    let places: Vec<(f64, u64)> =
        points.iter().map(|point| (point.price.seconds, point.price.total.0)).collect();
    let header = ["", "total", "bytes", "time", "", "difference from the usual way"];
    let mut rows = vec![header.map(str::to_string).to_vec()];
    let least = points.last().map_or(0.0, |point| point.price.seconds);
    for (i, Point { price, variant, description, fusion, .. }) in points.iter().enumerate() {
        let Bytes(bytes) = price.total;
        let fused = fusion.filter(|&name| name != "fusion").map_or(String::new(), |name| format!("; {name}"));
        rows.push(vec![
            picture::mark(i).to_string(),
            price.total.to_string(),
            bytes.to_string(),
            format!("{:.3} ms", price.seconds * 1e3),
            change_in_percent(least, price.seconds),
            format!("{variant}: {description}{fused}"),
        ]);
    }
    screen.break_cells(&mut rows, 5..6);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(rows.remove(0)).add_rows(rows);
    for column in 1..5 {
        table.column_mut(column).expect("six columns").set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{} on {}: from fewest bytes to least time, by the cost model\n\n{}\n{}\n\n\
         `--memory-limit BYTES` compiles the fastest of these that fits\n",
        module.name,
        target.name,
        picture::scatter(&places, screen),
        table.trim_fmt()
    )
}
