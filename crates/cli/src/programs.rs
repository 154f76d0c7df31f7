//! The programs of a folder of XLA's dumps: the memory of each by memplan and by XLA's assignment, and of all together.

use comfy_table::{CellAlignment, Table, presets};
use memplan::advice::OneDevice;
use memplan::memory::{Bytes, Resident, ResidentProgram, Target};
use memplan::plan::PlanOptions;

use crate::failure::Failure;
use crate::input::{ProgramFiles, of_one_device};
use crate::plan::plan_module;
use crate::screen::Screen;

/// Plans each program alone. A program that cannot be read or planned has an error instead.
pub(crate) fn measure(
    found: &[ProgramFiles],
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Resident {
    let measured = found.iter().map(|program| {
        let totals = program.module().and_then(|module| {
            let OneDevice { mut module, .. } = of_one_device(module, target)?;
            let (planned, _) = plan_module(&mut module, target, keep_schedule, options)?;
            Ok(planned.plan.totals)
        });
        let error = totals.as_ref().err().map(|failure| first_line(failure.text()));
        ResidentProgram {
            name: program.name.clone(),
            file: program.file.clone(),
            totals: totals.ok(),
            assigned: program.assigned(),
            error,
        }
    });
    Resident::new(measured.collect())
}

/// The programs in the folder or beside the file of a path, and XLA's assignments for them. Empty for a single file.
pub(crate) fn resident(
    path: &str,
    found: &[ProgramFiles],
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Option<Resident> {
    let is_alone = matches!(found, [program] if program.file == path && program.assigned().is_none());
    (!is_alone).then(|| measure(found, target, keep_schedule, options))
}

/// The program that needs most memory, on a machine without padding.
///
/// # Errors
/// None of the programs can be planned.
pub(crate) fn largest(found: &[ProgramFiles]) -> Result<usize, Failure> {
    let target = Target::find("cpu").expect("it is built in");
    largest_of(&measure(found, &target, true, &PlanOptions::default()))
}

/// The program that needs most memory, of those that were planned.
///
/// # Errors
/// No program was planned.
pub(crate) fn largest_of(resident: &Resident) -> Result<usize, Failure> {
    resident.largest().ok_or_else(|| {
        let reasons =
            resident.programs.iter().filter_map(|program| Some((&program.file, program.error.as_ref()?)));
        let reasons: Vec<String> = reasons.map(|(file, error)| format!("  {file}: {error}")).collect();
        Failure::Input(format!("error: none of the programs can be planned\n{}", reasons.join("\n")))
    })
}

/// A row for each program, the largest first, and their sum.
pub(crate) fn render(resident: &Resident, screen: Screen) -> String {
    let mut programs: Vec<&ResidentProgram> = resident.programs.iter().collect();
    let total = |program: &ResidentProgram| program.totals.as_ref().map(|totals| totals.total);
    programs.sort_by_key(|program| std::cmp::Reverse(total(program)));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["total", "temp", "XLA's total", "XLA's temp", "program"]);
    let text = |bytes: Option<Bytes>| bytes.map_or("-".to_string(), |bytes| bytes.to_string());
    for program in programs {
        let name = match &program.error {
            Some(error) => format!("{}: {error}", program.name),
            None => program.name.clone(),
        };
        table.add_row([
            text(total(program)),
            text(program.totals.as_ref().map(|totals| totals.temp)),
            text(program.assigned.map(|assigned| assigned.total)),
            text(program.assigned.map(|assigned| assigned.temp)),
            name,
        ]);
    }
    for column in 0..4 {
        table.column_mut(column).expect("five columns").set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}\n", table.trim_fmt());
    if resident.programs.len() > 1 {
        text.push_str(&format!(
            "\ntogether {} if all run at once, {} if one runs at a time (arrays that programs share count for each)\n",
            resident.all_running, resident.one_running
        ));
    }
    screen.wrap(&text)
}

/// The first line of a message, without the prefix of every message.
fn first_line(text: &str) -> String {
    let text = text.trim_start_matches("error: ");
    text.lines().next().unwrap_or_default().to_string()
}
