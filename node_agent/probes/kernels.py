"""The two GPU kernels of the probes, as PTX. The driver compiles it for the GPU at hand.

The target is the lowest architecture that has what the kernels use (tensor-core mma of 16x8x16 halves: sm_80), so one
text serves GB10 (sm_121) and any newer GPU; PTX is forward compatible.
"""

from __future__ import annotations

MMA_FLOPS = 2 * 16 * 8 * 16  # one m16n8k16 multiply-add, both operations counted
MMAS_PER_TURN = 8  # in `burn`, independent of each other so that the pipeline stays full
GEMV_WARPS_PER_BLOCK = 8


def _burn() -> str:
    """Each warp multiplies the same register tiles again and again: no memory traffic, nothing but tensor cores."""
    names = ", ".join(f"%f{4 * item + part}" for item in range(MMAS_PER_TURN) for part in range(4))
    zero = "\n".join(f"    mov.f32 %f{index}, 0f00000000;" for index in range(4 * MMAS_PER_TURN))
    turn = "\n".join(
        "    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        f"{{%f{4 * item}, %f{4 * item + 1}, %f{4 * item + 2}, %f{4 * item + 3}}}, "
        "{%r1, %r2, %r3, %r4}, {%r5, %r6}, "
        f"{{%f{4 * item}, %f{4 * item + 1}, %f{4 * item + 2}, %f{4 * item + 3}}};"
        for item in range(MMAS_PER_TURN)
    )
    total = "\n".join(f"    add.f32 %f0, %f0, %f{index};" for index in range(1, 4 * MMAS_PER_TURN))
    return f"""
.visible .entry burn(.param .u64 burn_out, .param .u32 burn_turns)
{{
    .reg .pred %p0;
    .reg .b32 %r<12>;
    .reg .b64 %rd<4>;
    .reg .f32 {names};
    // 0x00000000 and 0x10001000: halves of 0 and 2^-11, so that sums stay finite however long this runs
    mov.u32 %r1, 0x10001000;
    mov.u32 %r2, 0x10001000;
    mov.u32 %r3, 0x10001000;
    mov.u32 %r4, 0x10001000;
    mov.u32 %r5, 0x10001000;
    mov.u32 %r6, 0x10001000;
{zero}
    ld.param.u32 %r7, [burn_turns];
    mov.u32 %r8, 0;
turn:
{turn}
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p0, %r8, %r7;
    @%p0 bra turn;
{total}
    ld.param.u64 %rd1, [burn_out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r9, %ctaid.x;
    mov.u32 %r10, %ntid.x;
    mov.u32 %r11, %tid.x;
    mad.lo.u32 %r9, %r9, %r10, %r11;
    mul.wide.u32 %rd2, %r9, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.f32 [%rd3], %f0;
    ret;
}}
"""


GEMV = """
// One warp a row of halves: 16 bytes a lane and step. y[row] = sum of the row's products with ones.
.visible .entry gemv(.param .u64 gemv_matrix, .param .u64 gemv_out, .param .u32 gemv_rows, .param .u32 gemv_bytes)
{
    .reg .pred %p<4>;
    .reg .b16 %h<16>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<12>;
    .reg .f32 %f<24>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    shr.u32 %r5, %r4, 5;
    and.b32 %r6, %r4, 31;
    ld.param.u32 %r7, [gemv_rows];
    setp.ge.u32 %p0, %r5, %r7;
    @%p0 bra end;
    ld.param.u32 %r8, [gemv_bytes];
    ld.param.u64 %rd1, [gemv_matrix];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r5, %r8;
    add.u64 %rd3, %rd1, %rd2;
    mul.wide.u32 %rd4, %r6, 16;
    add.u64 %rd3, %rd3, %rd4;
    mul.lo.u32 %r9, %r6, 16;
    mov.f32 %f0, 0f00000000;
step:
    setp.ge.u32 %p1, %r9, %r8;
    @%p1 bra reduce;
    ld.global.nc.v4.u32 {%r10, %r11, %r12, %r13}, [%rd3];
    mov.b32 {%h0, %h1}, %r10;
    mov.b32 {%h2, %h3}, %r11;
    mov.b32 {%h4, %h5}, %r12;
    mov.b32 {%h6, %h7}, %r13;
    cvt.f32.f16 %f1, %h0;
    cvt.f32.f16 %f2, %h1;
    cvt.f32.f16 %f3, %h2;
    cvt.f32.f16 %f4, %h3;
    cvt.f32.f16 %f5, %h4;
    cvt.f32.f16 %f6, %h5;
    cvt.f32.f16 %f7, %h6;
    cvt.f32.f16 %f8, %h7;
    add.f32 %f1, %f1, %f2;
    add.f32 %f3, %f3, %f4;
    add.f32 %f5, %f5, %f6;
    add.f32 %f7, %f7, %f8;
    add.f32 %f1, %f1, %f3;
    add.f32 %f5, %f5, %f7;
    add.f32 %f1, %f1, %f5;
    add.f32 %f0, %f0, %f1;
    add.u64 %rd3, %rd3, 512;
    add.u32 %r9, %r9, 512;
    bra step;
reduce:
    mov.b32 %r14, %f0;
    shfl.sync.bfly.b32 %r15, %r14, 16, 31, 0xffffffff;
    mov.b32 %f9, %r15;
    add.f32 %f0, %f0, %f9;
    mov.b32 %r14, %f0;
    shfl.sync.bfly.b32 %r15, %r14, 8, 31, 0xffffffff;
    mov.b32 %f9, %r15;
    add.f32 %f0, %f0, %f9;
    mov.b32 %r14, %f0;
    shfl.sync.bfly.b32 %r15, %r14, 4, 31, 0xffffffff;
    mov.b32 %f9, %r15;
    add.f32 %f0, %f0, %f9;
    mov.b32 %r14, %f0;
    shfl.sync.bfly.b32 %r15, %r14, 2, 31, 0xffffffff;
    mov.b32 %f9, %r15;
    add.f32 %f0, %f0, %f9;
    mov.b32 %r14, %f0;
    shfl.sync.bfly.b32 %r15, %r14, 1, 31, 0xffffffff;
    mov.b32 %f9, %r15;
    add.f32 %f0, %f0, %f9;
    setp.ne.u32 %p2, %r6, 0;
    @%p2 bra end;
    ld.param.u64 %rd5, [gemv_out];
    cvta.to.global.u64 %rd5, %rd5;
    mul.wide.u32 %rd6, %r5, 4;
    add.u64 %rd5, %rd5, %rd6;
    st.global.f32 [%rd5], %f0;
end:
    ret;
}
"""

PTX = ".version 7.0\n.target sm_80\n.address_size 64\n" + _burn() + GEMV
