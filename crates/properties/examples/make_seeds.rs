//! Writes the seeds of the fuzz targets that no person writes: protobuf, plan files, archives.

use std::path::Path;

use memplan::memory::{PlanFile, Target};
use memplan::{hlo, interp::npz};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
        std::fs::write(path, bytes).expect("the file can be written");
    };
    let source = include_str!("../src/program.hlo");
    let mut module = hlo::parse(source).expect("it is HLO");
    write("parse_proto/program", &hlo::proto::write_module(&module).expect("it is valid"));
    let toy = Target::find("toy").expect("the target is built in");
    let planned = memplan_properties::plan_to_run(&mut module, &toy).expect("it has a plan");
    let file = PlanFile::new(&module, &planned.schedule, &planned.plan);
    write("plan_file/program", &serde_json::to_vec(&file).expect("keys are strings"));
    write("parse_proto/scheduled", &hlo::proto::write_module(&module).expect("it is valid"));
    let inputs =
        hlo::parse("HloModule m\nENTRY e {\n  ROOT p = f32[2,3] parameter(0)\n}").expect("it is HLO");
    let literal = memplan_testkit::random_inputs(&inputs, 7).swap_remove(0);
    let mut archive = std::io::Cursor::new(Vec::new());
    npz::write_outputs(&literal, &mut archive).expect("memory does not run full");
    write("npz/archive", archive.get_ref());
    let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
    let mut array = b"\0\x93NUMPY\x01\0\x76\0".to_vec();
    array.extend(format!("{header:117}\n").bytes());
    array.extend([0; 24]);
    write("npz/array", &array);
}
