module @m {
  func.func @main(%a: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.negate %a : tensor<f32> loc(#loc1)
    return %0 : tensor<f32>
  }
}
#loc1 = loc(callsite(#loc2 at #loc2))
#loc2 = loc(callsite("f"("a.py":1:2) at #loc2))
