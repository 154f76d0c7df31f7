//! Metadata, stack frames, statistics, original values, frontend attributes.

use memplan_ir::{
    FileLocation, FrontendAttributes, Metadata, OriginalArray, OriginalTree, OriginalValue, ResultAccuracy,
    Shape, ShapeIndex, StackFrame, StackFrames, Statistics,
};

use super::{FieldError, shape_index, steps};
use crate::proto::messages as pb;
use crate::proto::wire::{Kept, put_bytes};

pub(in crate::proto) fn metadata(kept: Kept<pb::OpMetadata>) -> Metadata {
    let Kept { message: m, mut unknown } = kept;
    let mut payload = m.metadata_payload.unwrap_or_default();
    if payload.id != 0 {
        // Payloads by number are in the module; the whole field is kept as it came.
        put_bytes(20, &prost::Message::encode_to_vec(&payload), &mut unknown);
        payload.value.clear();
    }
    Metadata {
        op_type: m.op_type.into(),
        op_name: m.op_name.into(),
        source_file: m.source_file.into(),
        source_line: m.source_line,
        source_end_line: m.source_end_line,
        source_column: m.source_column,
        source_end_column: m.source_end_column,
        stack_frame_id: m.stack_frame_id,
        profile_types: m.profile_type.into(),
        deduplicated_name: m.deduplicated_name.into(),
        scheduling_name: m.scheduling_name.into(),
        payload: payload.value.as_ref().into(),
        unknown_fields: unknown.into(),
    }
}

pub(in crate::proto) fn metadata_proto(m: &Metadata) -> Kept<pb::OpMetadata> {
    let payload = pb::Payload { value: m.payload.to_vec().into(), id: 0 };
    let message = pb::OpMetadata {
        op_type: m.op_type.to_string(),
        op_name: m.op_name.to_string(),
        source_file: m.source_file.to_string(),
        source_line: m.source_line,
        profile_type: m.profile_types.to_vec(),
        deduplicated_name: m.deduplicated_name.to_string(),
        stack_frame_id: m.stack_frame_id,
        scheduling_name: m.scheduling_name.to_string(),
        source_end_line: m.source_end_line,
        source_column: m.source_column,
        source_end_column: m.source_end_column,
        metadata_payload: (!m.payload.is_empty()).then_some(payload),
    };
    Kept { message, unknown: m.unknown_fields.to_vec() }
}

pub(in crate::proto) fn stack_frames(proto: pb::StackFrameIndexProto) -> StackFrames {
    let location = |l: pb::FileLocationProto| FileLocation {
        file_name_id: l.file_name_id,
        function_name_id: l.function_name_id,
        line: l.line,
        end_line: l.end_line,
        column: l.column,
        end_column: l.end_column,
    };
    let frame = |f: pb::StackFrameProto| StackFrame {
        file_location_id: f.file_location_id,
        parent_frame_id: f.parent_frame_id,
    };
    StackFrames {
        file_names: proto.file_names.into_iter().map(Into::into).collect(),
        function_names: proto.function_names.into_iter().map(Into::into).collect(),
        file_locations: proto.file_locations.into_iter().map(location).collect(),
        frames: proto.stack_frames.into_iter().map(frame).collect(),
    }
}

pub(in crate::proto) fn stack_frames_proto(frames: &StackFrames) -> pb::StackFrameIndexProto {
    let location = |l: &FileLocation| pb::FileLocationProto {
        file_name_id: l.file_name_id,
        function_name_id: l.function_name_id,
        line: l.line,
        column: l.column,
        end_line: l.end_line,
        end_column: l.end_column,
    };
    let frame = |f: &StackFrame| pb::StackFrameProto {
        file_location_id: f.file_location_id,
        parent_frame_id: f.parent_frame_id,
    };
    pb::StackFrameIndexProto {
        file_names: frames.file_names.iter().map(|name| name.to_string()).collect(),
        function_names: frames.function_names.iter().map(|name| name.to_string()).collect(),
        file_locations: frames.file_locations.iter().map(location).collect(),
        stack_frames: frames.frames.iter().map(frame).collect(),
    }
}

pub(in crate::proto) fn frontend_attributes(proto: Option<pb::FrontendAttributes>) -> FrontendAttributes {
    let entries = proto.into_iter().flat_map(|attributes| attributes.map);
    let mut attributes: FrontendAttributes = entries.map(|e| (e.key.into(), e.value.into())).collect();
    // A map has no order on the wire; XLA prints it by key.
    attributes.sort_unstable_keys();
    attributes
}

pub(in crate::proto) fn frontend_attributes_proto(
    attributes: &FrontendAttributes,
) -> Option<pb::FrontendAttributes> {
    let mut map: Vec<pb::StringEntry> = attributes
        .iter()
        .map(|(key, value)| pb::StringEntry { key: key.to_string(), value: value.to_string() })
        .collect();
    map.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    (!map.is_empty()).then_some(pb::FrontendAttributes { map })
}

/// `None` where there are none: XLA writes an empty message for every instruction.
pub(in crate::proto) fn statistics(proto: &pb::StatisticsViz) -> Option<Statistics> {
    let values = proto.statistics.iter().map(|s| (s.stat_name.as_str().into(), s.stat_val)).collect();
    let statistics = Statistics { visualizing_index: proto.stat_index_to_visualize, values };
    (statistics != Statistics::default()).then_some(statistics)
}

pub(in crate::proto) fn statistics_proto(statistics: &Statistics) -> pb::StatisticsViz {
    let value =
        |(name, value): &(Box<str>, f64)| pb::Statistic { stat_name: name.to_string(), stat_val: *value };
    pb::StatisticsViz {
        stat_index_to_visualize: statistics.visualizing_index,
        statistics: statistics.values.iter().map(value).collect(),
    }
}

pub(in crate::proto) fn result_accuracy(proto: &pb::ResultAccuracyProto) -> Option<ResultAccuracy> {
    match (&proto.tolerance, proto.mode) {
        (Some(t), _) => Some(ResultAccuracy::Tolerance { rtol: t.rtol, atol: t.atol, ulps: t.ulps }),
        (None, 1) => Some(ResultAccuracy::Highest),
        (None, _) => None,
    }
}

pub(in crate::proto) fn result_accuracy_proto(accuracy: &ResultAccuracy) -> pb::ResultAccuracyProto {
    match *accuracy {
        ResultAccuracy::Highest => pb::ResultAccuracyProto { mode: 1, tolerance: None },
        ResultAccuracy::Tolerance { rtol, atol, ulps } => {
            pb::ResultAccuracyProto { mode: 0, tolerance: Some(pb::Tolerance { atol, rtol, ulps }) }
        }
    }
}

/// The leaves of an original value are listed with their indices; the tree is that of the instruction's shape.
pub(in crate::proto) fn original_value(
    proto: pb::OriginalValueProto,
    shape: &Shape,
) -> Result<OriginalValue, FieldError> {
    if proto.is_synthetic_call {
        return Ok(OriginalValue::SyntheticCall);
    }
    let mut tree = empty_tree(shape);
    for element in proto.elements {
        let index = shape_index("original_value", &element.shape_index)?;
        let outside = || FieldError::value("original_value", &index);
        let leaf = index.0.iter().try_fold(&mut tree, |tree, &step| match tree {
            OriginalTree::Tuple(elements) => elements.get_mut(step as usize),
            OriginalTree::Leaf(_) => None,
        });
        match (leaf, element.original_array) {
            (Some(leaf @ OriginalTree::Leaf(_)), Some(array)) => {
                *leaf = OriginalTree::Leaf(Some(original_array(array)?));
            }
            (Some(_), None) => (),
            _ => return Err(outside()),
        }
    }
    Ok(OriginalValue::Tree(tree))
}

pub(in crate::proto) fn original_array(proto: pb::OriginalArrayProto) -> Result<OriginalArray, FieldError> {
    let index = shape_index("original_array", &proto.shape_index)?;
    Ok(OriginalArray { instruction: proto.instruction_name.into(), index })
}

pub(in crate::proto) fn original_array_proto(array: &OriginalArray) -> pb::OriginalArrayProto {
    pb::OriginalArrayProto {
        instruction_name: array.instruction.to_string(),
        shape_index: steps(&array.index),
    }
}

fn empty_tree(shape: &Shape) -> OriginalTree {
    match shape {
        Shape::Tuple(elements) => OriginalTree::Tuple(elements.iter().map(empty_tree).collect()),
        _ => OriginalTree::Leaf(None),
    }
}

pub(in crate::proto) fn original_value_proto(value: &OriginalValue) -> pb::OriginalValueProto {
    fn walk(tree: &OriginalTree, at: &mut ShapeIndex, elements: &mut Vec<pb::OriginalValueElement>) {
        match tree {
            OriginalTree::Leaf(array) => elements.push(pb::OriginalValueElement {
                shape_index: steps(at),
                original_array: array.as_ref().map(original_array_proto),
            }),
            OriginalTree::Tuple(trees) => {
                for (i, tree) in (0..).zip(trees) {
                    at.0.push(i);
                    walk(tree, at, elements);
                    at.0.pop();
                }
            }
        }
    }
    let mut elements = Vec::new();
    match value {
        OriginalValue::SyntheticCall => pb::OriginalValueProto { elements, is_synthetic_call: true },
        OriginalValue::Tree(tree) => {
            walk(tree, &mut ShapeIndex::root(), &mut elements);
            pb::OriginalValueProto { elements, is_synthetic_call: false }
        }
    }
}
