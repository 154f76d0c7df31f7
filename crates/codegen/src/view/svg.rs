//! The picture of a plan for papers and pages: live bytes over the program, and below, every buffer as a rectangle of
//! addresses and time.

use memplan_memory::{Bytes, KindName, MemorySpaceId};
use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path, Rectangle, Style, Text, Title};

use super::View;
use crate::layout::Address;

/// The page, in pixels.
const WIDTH: f64 = 960.0;
const MARGIN: (f64, f64) = (84.0, 16.0);
const CURVE: f64 = 120.0;
const SPACE: f64 = 260.0;
const HEADING: f64 = 30.0;
const BELOW: f64 = 34.0;

/// Rectangles that are lower than this are not seen.
const LEAST: f64 = 0.2;

/// Letters are about this wide, and text is put where it has room.
const LETTER: f64 = 6.2;

/// Colours that read on light and dark pages, for a rectangle each in turn; arguments, results and constants have
/// colours of their own.
const TEMPS: [&str; 6] = ["#4e79a7", "#76b7b2", "#59a14f", "#9c755f", "#af7aa1", "#6b9bd1"];
const ARGUMENT: &str = "#8f857f";
const OUTPUT: &str = "#f28e2b";
const CONSTANT: &str = "#b6992d";

/// A picture of a planned program as SVG, in time linear in launches and buffers.
pub fn svg(view: &View) -> String {
    let spaces: Vec<MemorySpaceId> = view.curves.iter().map(|curve| curve.space).collect();
    let panel = HEADING + CURVE + 10.0 + SPACE + BELOW;
    let height = panel * spaces.len() as f64;
    let mut page = Document::new()
        .set("viewBox", (0, 0, WIDTH as i64, height as i64))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .add(Title::new(format!("Memory of {} on {}", view.layout.module, view.layout.target)))
        .add(Style::new(STYLE));
    for (i, &space) in spaces.iter().enumerate() {
        page = page.add(Panel { view, space, top: panel * i as f64 }.draw(i));
    }
    page.to_string() + "\n"
}

const STYLE: &str = "text{font:11px ui-sans-serif,system-ui,sans-serif;fill:#57606a}\
    .h{font-size:13px;font-weight:600;fill:#24292f}.i{fill:#fff;font-size:10px}\
    .axis{stroke:#8c959f;stroke-width:1}.peak{stroke:#e15759;stroke-width:1;stroke-dasharray:3 3}\
    .pt{fill:#e15759}\
    @media(prefers-color-scheme:dark){text{fill:#9da7b3}.h{fill:#e6edf3}.i{fill:#fff}}";

/// One memory space.
struct Panel<'a> {
    view: &'a View,
    space: MemorySpaceId,
    top: f64,
}

impl Panel<'_> {
    fn draw(&self, index: usize) -> Group {
        let ground = Rectangle::new()
            .set("x", MARGIN.0)
            .set("y", self.bottom() - SPACE)
            .set("width", WIDTH - MARGIN.0 - MARGIN.1)
            .set("height", SPACE)
            .set("fill", "#8c959f")
            .set("opacity", 0.12);
        let mut group = Group::new().add(self.heading()).add(self.curve()).add(ground);
        group = self.scratch().into_iter().fold(group, Group::add);
        for (i, buffer) in (0..).zip(&self.view.layout.buffers) {
            if buffer.space == self.space {
                group = self.rectangle(i).into_iter().fold(group, Group::add);
            }
        }
        let peak = self.x(f64::from(self.view.peak.launch) + 0.5);
        if index == 0 {
            let text = format!("peak {} while {} runs", self.view.peak.bytes, self.view.peak.instruction);
            group = group.add(line("peak", (peak, self.top + HEADING), (peak, self.bottom()))).add(
                label(text, WIDTH - MARGIN.1, self.top + 18.0).set("text-anchor", "end").set("class", "pt"),
            );
        }
        let (left, right) = (MARGIN.0, WIDTH - MARGIN.1);
        for (y, bytes) in [
            (self.curve_bottom(), Bytes::ZERO),
            (self.curve_bottom() - CURVE, self.most_live()),
            (self.bottom(), Bytes::ZERO),
            (self.bottom() - SPACE, self.view.height(self.space)),
        ] {
            group = group
                .add(label(bytes.to_string(), left - 6.0, y + 4.0).set("text-anchor", "end"))
                .add(line("axis", (left - 3.0, y), (left, y)));
        }
        for y in [self.curve_bottom(), self.bottom()] {
            group = group.add(line("axis", (left, y), (right, y)));
        }
        let launches = format!("{} launches", self.view.layout.launches);
        group
            .add(label(launches, right, self.bottom() + 14.0).set("text-anchor", "end"))
            .add(label("address".into(), left - 6.0, self.bottom() - SPACE / 2.0).set("text-anchor", "end"))
            .add(
                label("live".into(), left - 6.0, self.curve_bottom() - CURVE / 2.0).set("text-anchor", "end"),
            )
    }

    fn heading(&self) -> Text {
        let layout = &self.view.layout;
        let used = layout.spaces.iter().find(|s| s.id == self.space).map_or(Bytes::ZERO, |s| s.used);
        let text =
            format!("{} on {}: {used} of {}", layout.module, layout.target, self.view.space_name(self.space));
        label(text, MARGIN.0, self.top + 18.0).set("class", "h")
    }

    fn curve(&self) -> Path {
        let Some(curve) = self.view.curves.iter().find(|curve| curve.space == self.space) else {
            return Path::new();
        };
        let mut data = Data::new().move_to((self.x(0.0), self.curve_bottom()));
        let y = |bytes: Bytes| {
            round(self.curve_bottom() - CURVE * bytes.0 as f64 / self.most_live().0.max(1) as f64)
        };
        // Of launches that share a pixel, the most.
        let columns = curve.live.len().min((WIDTH - MARGIN.0 - MARGIN.1) as usize * 2);
        for column in 0..columns {
            let (from, to) = (column * curve.live.len() / columns, (column + 1) * curve.live.len() / columns);
            let most = curve.live[from..to].iter().copied().max().unwrap_or(Bytes::ZERO);
            data = data.line_to((self.x(from as f64), y(most))).horizontal_line_to(self.x(to as f64));
        }
        data = data.line_to((self.x(curve.live.len() as f64), self.curve_bottom())).close();
        Path::new().set("d", data).set("fill", "#4e79a7").set("opacity", 0.75)
    }

    /// Working memory of kernels, paler than buffers.
    fn scratch(&self) -> Vec<Rectangle> {
        let allocations = &self.view.layout.allocations;
        let launches = self.view.layout.computations.iter().flat_map(|computation| &computation.launches);
        let inside = launches
            .flat_map(|launch| launch.scratch.iter().map(move |address| (launch.index, address)))
            .filter(|(_, address)| allocations[address.allocation as usize].space == self.space);
        let rectangle = |(launch, address): (u32, &Address)| {
            let base = self.view.bases[address.allocation as usize].saturating_add(address.offset);
            let (x, right) = (self.x(f64::from(launch)), self.x(f64::from(launch) + 1.0));
            let (y, height) = self.rows(base, address.size)?;
            let place = Rectangle::new().set("x", x).set("y", y).set("width", round(right - x));
            Some(place.set("height", height).set("fill", "#8c959f").set("opacity", 0.35))
        };
        inside.filter_map(rectangle).collect()
    }

    /// The top and the height of some addresses; none where they are too few to be seen.
    fn rows(&self, base: Bytes, size: Bytes) -> Option<(f64, f64)> {
        let scale = SPACE / self.view.height(self.space).0.max(1) as f64;
        let height = size.0 as f64 * scale;
        (height >= LEAST).then(|| (round(self.bottom() - base.0 as f64 * scale - height), round(height)))
    }

    /// A buffer, with its name where it has room.
    fn rectangle(&self, index: u32) -> Option<Group> {
        let buffer = &self.view.layout.buffers[index as usize];
        let (x, right) =
            (self.x(f64::from(buffer.live.from)), self.x(f64::from(self.view.end_of(buffer.live))));
        let (y, height) = self.rows(self.view.base(index), buffer.address.size)?;
        let kind = self.view.layout.allocations[buffer.address.allocation as usize].kind;
        let colour = match kind {
            KindName::Argument => ARGUMENT,
            KindName::Output => OUTPUT,
            KindName::Constant => CONSTANT,
            KindName::Temp => TEMPS[index as usize % TEMPS.len()],
        };
        let hint = format!("{}\n{} {}", buffer.full_name(), buffer.address.size, buffer.shape);
        let rectangle = Rectangle::new()
            .set("x", x)
            .set("y", y)
            .set("width", round(right - x))
            .set("height", height)
            .set("fill", colour)
            .add(Title::new(hint));
        let group = Group::new().add(rectangle);
        let fits = height > 12.0 && right - x > LETTER * (buffer.full_name().len() + 1) as f64;
        Some(match fits {
            true => {
                group.add(label(buffer.full_name(), x + 4.0, round(y + height / 2.0 + 3.5)).set("class", "i"))
            }
            false => group,
        })
    }

    fn x(&self, launch: f64) -> f64 {
        let launches = f64::from(self.view.layout.launches.max(1));
        round(MARGIN.0 + (WIDTH - MARGIN.0 - MARGIN.1) * (launch / launches).min(1.0))
    }

    fn most_live(&self) -> Bytes {
        let curve = self.view.curves.iter().find(|curve| curve.space == self.space);
        curve.and_then(|curve| curve.live.iter().copied().max()).unwrap_or(Bytes::ZERO)
    }

    fn curve_bottom(&self) -> f64 {
        self.top + HEADING + CURVE
    }

    fn bottom(&self) -> f64 {
        self.curve_bottom() + 10.0 + SPACE
    }
}

fn label(text: String, x: f64, y: f64) -> Text {
    Text::new(text).set("x", x).set("y", y)
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new().set("class", class).set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1)
}

/// To hundredths of a pixel.
fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}
