//! Constraints on targets beyond their types.

use crate::{Bytes, FastMemory, MemorySpace, MemorySpaceId, Target, TargetError, Transfer, VectorUnit};

/// A field that is wrong, and why.
type Problem = (String, String);

impl Target {
    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// [`TargetError::Invalid`] with the field that is wrong.
    pub fn validate(&self) -> Result<(), TargetError> {
        self.problem().map_err(|(field, message)| TargetError::Invalid {
            target: self.name.clone(),
            field,
            message,
        })
    }

    fn problem(&self) -> Result<(), Problem> {
        let Some(main) = self.spaces.first() else {
            return wrong("spaces", "it has no memory space");
        };
        if main.id != MemorySpaceId::MAIN {
            return wrong("spaces.0.id", format!("its first memory space is {}, not S(0)", main.id));
        }
        if main.read_only {
            return wrong("spaces.0.read_only", "programs write into main memory");
        }
        for (i, space) in self.spaces.iter().enumerate() {
            space_problem(i, space, &self.spaces[..i])?;
        }
        for i in 0..self.transfers.len() {
            self.transfer_problem(i)?;
        }
        self.link_problem()?;
        self.rate_problem()?;
        self.vector_unit.iter().try_for_each(vector_unit_problem)?;
        self.fast_memory.iter().try_for_each(|fast| self.fast_memory_problem(main.id, fast))?;
        match self.tiles.as_ref().and_then(|tiles| tiles.problem(main.capacity)) {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }

    fn transfer_problem(&self, i: usize) -> Result<(), Problem> {
        let transfer = &self.transfers[i];
        for (end, id) in [("from", transfer.from), ("to", transfer.to)] {
            if self.space(id).is_none() {
                return wrong(format!("transfers.{i}.{end}"), format!("there is no memory space {id}"));
            }
        }
        if transfer.from == transfer.to {
            let message = format!("a transfer ends in another memory space than {}", transfer.from);
            return wrong(format!("transfers.{i}.to"), message);
        }
        let ends = |transfer: &Transfer| (transfer.from, transfer.to);
        if self.transfers[..i].iter().any(|other| ends(other) == ends(transfer)) {
            let message = format!("the transfer from {} to {} is there twice", transfer.from, transfer.to);
            return wrong(format!("transfers.{i}.to"), message);
        }
        if transfer.bandwidth.is_some_and(|bandwidth| !is_above_zero(bandwidth)) {
            return wrong(
                format!("transfers.{i}.bandwidth"),
                "the bandwidth of a transfer must be above zero",
            );
        }
        Ok(())
    }

    /// An error in the links: each joins more devices than the nearer ones.
    fn link_problem(&self) -> Result<(), Problem> {
        for (i, link) in self.links.iter().enumerate() {
            if !is_above_zero(link.bandwidth) {
                return wrong(format!("links.{i}.bandwidth"), "the bandwidth of a link must be above zero");
            }
            let nearer = i.checked_sub(1).map_or(Some(1), |before| self.links[before].devices);
            let is_farther = match (nearer, link.devices) {
                (Some(nearer), Some(devices)) => devices > nearer && devices % nearer == 0,
                (nearer, _) => nearer.is_some(),
            };
            if !is_farther {
                let message = "a link joins a multiple of the devices that the link before it joins";
                return wrong(format!("links.{i}.devices"), message);
            }
        }
        Ok(())
    }

    /// An error in the speeds of the cores.
    fn rate_problem(&self) -> Result<(), Problem> {
        if self.vector_rate.is_some_and(|rate| !is_above_zero(rate)) {
            return wrong("vector_rate", "the rate of the vector units must be above zero");
        }
        if self.tf32_rate.is_some_and(|rate| !is_above_zero(rate)) {
            return wrong("tf32_rate", "a rate must be above zero");
        }
        if self.matrix_unit == Some(0) {
            return wrong("matrix_unit", "a matrix unit has at least one row");
        }
        if self.matrix_cores.is_some_and(|cores| [cores.count, cores.tile, cores.depth].contains(&0)) {
            return wrong("matrix_cores", "there is at least one of everything");
        }
        let shares = self.matrix_cores.map(|cores| {
            [Some(cores.share), cores.convolution_share, cores.depthwise_share].into_iter().flatten()
        });
        if !shares.into_iter().flatten().all(is_share) {
            return wrong("matrix_cores", "products reach a share of their rate above 0 and up to 1");
        }
        let started = self.matrix_cores.map(|cores| [cores.product_seconds, cores.convolution_seconds]);
        if !started.into_iter().flatten().all(is_duration) {
            return wrong("matrix_cores", "what products take in addition must not be below zero");
        }
        if !is_duration(self.kernel_overhead) {
            return wrong("kernel_overhead", "the overhead of a kernel must not be below zero");
        }
        Ok(())
    }

    fn fast_memory_problem(&self, main: MemorySpaceId, fast: &FastMemory) -> Result<(), Problem> {
        let has_way = |from, to| self.transfers.iter().any(|way| way.from == from && way.to == to);
        let space = |message: String| wrong("fast_memory.space", message);
        if fast.space == MemorySpaceId::MAIN {
            return space("the fast memory is not the main one".into());
        }
        if self.space(fast.space).and_then(|space| space.capacity).is_none() {
            return space(format!("{} is no memory with a capacity", fast.space));
        }
        if self.space(fast.space).is_some_and(|space| space.read_only) {
            return space(format!("programs cannot write into {}", fast.space));
        }
        if !has_way(main, fast.space) {
            return space(format!("no transfer leads to {}", fast.space));
        }
        if !has_way(fast.space, main) {
            return space(format!("no transfer leads from {}", fast.space));
        }
        if self.space(fast.flags).is_none() {
            return wrong("fast_memory.flags", format!("there is no memory {}", fast.flags));
        }
        Ok(())
    }
}

fn is_share(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}

/// An error in the memory space with this number, given that earlier ones are sound.
fn space_problem(i: usize, space: &MemorySpace, before: &[MemorySpace]) -> Result<(), Problem> {
    let MemorySpace { id, name, .. } = space;
    let wrong = |field: &str, message: String| wrong(format!("spaces.{i}.{field}"), message);
    if before.iter().any(|other| other.id == *id) {
        return wrong("id", format!("memory space {id} is there twice"));
    }
    if name.is_empty() || before.iter().any(|other| other.name == *name) {
        return wrong("name", "every memory space has a name of its own".into());
    }
    if space.bandwidth.is_some_and(|bandwidth| !is_above_zero(bandwidth)) {
        return wrong("bandwidth", format!("the bandwidth of `{name}` must be above zero"));
    }
    if !is_share(space.kernel_share) {
        return wrong("kernel_share", "kernels reach a share of the bandwidth above 0 and up to 1".into());
    }
    if !is_duration(space.latency) {
        return wrong("latency", format!("the latency of `{name}` must not be below zero"));
    }
    if space.capacity.is_some_and(|capacity| capacity < space.reserved) {
        return wrong("reserved", format!("`{name}` reserves more than it has"));
    }
    if space.usable().is_some_and(|usable| usable < space.kernel_scratch) {
        return wrong("kernel_scratch", format!("the scratch of a kernel is more than `{name}` has"));
    }
    if space.read_only && space.kernel_scratch > Bytes::ZERO {
        return wrong(
            "kernel_scratch",
            format!("kernels have no scratch in `{name}`, which they can only read"),
        );
    }
    if space.kernel_scratch_base > space.kernel_scratch {
        return wrong("kernel_scratch_base", "a kernel's scratch begins with more than it may have".into());
    }
    if space.kernel_scratch_base > Bytes::ZERO && space.kernel_scratch_per_byte.is_none() {
        let message = "without `kernel_scratch_per_byte` every kernel uses all it may have";
        return wrong("kernel_scratch_base", message.into());
    }
    Ok(())
}

fn vector_unit_problem(unit: &VectorUnit) -> Result<(), Problem> {
    let seconds = [
        ("evaluation", unit.evaluation_seconds),
        ("access", unit.access_seconds),
        ("epilogue", unit.epilogue_seconds),
        ("operand", unit.operand_seconds),
        ("move", unit.move_seconds),
    ];
    if let Some((name, _)) = seconds.iter().find(|(_, seconds)| !is_duration(*seconds)) {
        return wrong(format!("vector_unit.{name}_seconds"), "what a register takes must not be below zero");
    }
    if unit.register_elements == 0 {
        return wrong("vector_unit.register_elements", "a register has at least one element");
    }
    Ok(())
}

fn wrong(field: impl Into<String>, message: impl Into<String>) -> Result<(), Problem> {
    Err((field.into(), message.into()))
}

fn is_above_zero(rate: f64) -> bool {
    rate > 0.0 && rate.is_finite()
}

fn is_duration(seconds: f64) -> bool {
    seconds >= 0.0 && seconds.is_finite()
}
