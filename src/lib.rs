//! Memory planning for tensor programs: from HLO to proven buffer assignments.
//!
//! The crates behind this façade can be used on their own; see ARCHITECTURE.md for what is where.

pub use memplan_analysis as analysis;
pub use memplan_check as check;
pub use memplan_hlo as hlo;
pub use memplan_ir as ir;
pub use memplan_memory as memory;
pub use memplan_pack as pack;
pub use memplan_passes as passes;
pub use memplan_plan as plan;
