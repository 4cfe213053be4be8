"""Messages of google.protobuf for the published schemas, made at run time.

`classes(SCHEMA)` gives a class for each message. `newer=True` adds fields that readers do not know,
and `packed` forces every repeated number to be packed or not, where the schema leaves it open.
"""

import functools
import re

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in (
        "double",
        "float",
        "int64",
        "int32",
        "uint32",
        "uint64",
        "fixed64",
        "sfixed64",
        "bool",
        "string",
        "bytes",
    )
}
_FIELDS = r"(\w+)=(\d+):((?:repeated |packed |unpacked |map |enum )?[\w,]+)"
_UNKNOWN = "newer_number=901:int64 newer_text=902:string newer_numbers=903:repeated fixed64"

# Message, and its fields `name=number:type`; the fields after `oneof` exclude each other.
EXAMPLE = """
package monolith.io.proto
syntax proto3
FidList value=1:repeated fixed64
FloatList value=1:repeated float
DoubleList value=1:repeated double
Int64List value=1:repeated int64
BytesList value=1:repeated bytes
FidLists list=1:repeated FidList
FloatLists list=1:repeated FloatList
DoubleLists list=1:repeated DoubleList
Int64Lists list=1:repeated Int64List
BytesLists list=1:repeated BytesList
Feature oneof fid_v1_list=1:FidList fid_v2_list=2:FidList float_list=3:FloatList
  double_list=4:DoubleList int64_list=5:Int64List bytes_list=6:BytesList fid_v2_lists=7:FidLists
  float_lists=8:FloatLists double_lists=9:DoubleLists int64_lists=10:Int64Lists
  bytes_lists=11:BytesLists int64_value=12:int64 float_value=13:float double_value=14:double
  bytes_value=15:bytes fid_v1_lists=16:FidLists
RawFeature feature=1:repeated Feature
NamedFeature name=1:string feature=2:Feature id=3:int32 sorted_id=6:int32
NamedRawFeature name=1:string raw_feature=2:RawFeature id=3:int32
LineId uid=2:fixed64 req_time=3:int64 item_id=4:fixed64 actions=6:packed int32 chnid=19:int64
  pre_actions=23:packed int32 sample_rate=27:float special_strategies=39:unpacked int32
  device_type=41:string cid=48:string user_id=49:string is_draw=87:bool rank=145:int32
  data_source_name=235:string
Example named_feature=1:repeated NamedFeature named_raw_feature=2:repeated NamedRawFeature
  line_id=100:LineId label=101:repeated float instance_weight=102:float
  data_source_key=103:uint32
NamedFeatureList name=1:string feature=2:repeated Feature type=3:int32 id=4:int32
ExampleBatch named_feature_list=1:repeated NamedFeatureList batch_size=3:int32
  data_source_key=100:uint32
SliceConfig feature_name=1:string start=2:int32 end=3:int32 feature_idx=4:int32
  slice_idx=5:int32 pooling_type=10:int32 max_sequence_length=11:int32
TensorShape dims=1:repeated int32
OutConfig slice_configs=1:repeated SliceConfig out_type=2:int32 shape=3:repeated TensorShape
FeatureConfig table=1:string pooling_type=2:int32 slice_dims=3:repeated int32
  max_sequence_length=4:int32
FeatureConfigs feature_configs=1:map FeatureConfig out_configs=2:map OutConfig
"""
INSTANCE = """
package parser.proto
syntax proto2
LineId uid=2:fixed64 req_time=3:int64 item_id=4:fixed64 actions=6:packed int32 chnid=19:int64
  pre_actions=23:packed int32 sample_rate=27:float special_strategies=39:unpacked int32
  device_type=41:string cid=48:string user_id=49:string is_draw=87:bool rank=145:int32
  data_source_name=235:string
Fixed64List value=1:packed fixed64
FloatList value=1:packed float
Int64List value=1:packed int64
BytesList value=1:repeated bytes
Feature name=1:string fid=2:packed fixed64 float_value=3:packed float int64_value=4:packed int64
  bytes_value=5:repeated bytes fid_list=6:repeated Fixed64List float_list=7:repeated FloatList
  int64_list=8:repeated Int64List bytes_list=9:repeated BytesList
LabelTag key=1:int32 val=2:float
Instance fid=1:packed fixed64 value=2:packed float label=3:packed float instance_weight=4:float
  line_id=5:LineId dense=6:packed float label_tag=7:repeated LabelTag next_fid=8:packed fixed64
  feature=9:repeated Feature data_source_key=100:uint32
"""
TF_EXAMPLE = """
package tensorflow
syntax proto3
BytesList value=1:repeated bytes
FloatList value=1:repeated float
Int64List value=1:repeated int64
Feature oneof bytes_list=1:BytesList float_list=2:FloatList int64_list=3:Int64List
Features feature=1:map Feature
Example features=1:Features
"""
CHECKPOINT = """
package tensorflow
syntax proto2
CheckpointState model_checkpoint_path=1:string all_model_checkpoint_paths=2:repeated string
  all_model_checkpoint_timestamps=3:repeated double last_preserved_timestamp=4:double
MonolithCheckpointState exempt_model_checkpoint_paths=1:repeated string
  last_checkpoint_save_timestamp=2:int64 builtin_hash_table_type=3:enum
  UNKNOWN,CUCKOO_HASH_MAP,MULTI_CUCKOO_HASH_MAP
"""


@functools.cache
def classes(schema, *, newer=False, packed=None):
    """Message -> class."""
    whole = re.sub(r"\n +", " ", schema.strip())
    lines = [line.split(" ", 1) for line in whole.splitlines()]
    package, syntax = lines[0][1], lines[1][1]
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package=package, syntax=syntax)
    for name, text in lines[2:]:
        message = file.message_type.add(name=name)
        if text.startswith("oneof "):
            message.oneof_decl.add(name="type")
        fields = re.findall(
            r"(\w+)=(\d+):((?:repeated |packed |unpacked |map |enum )?[\w,]+)", text
        )
        unknown = re.findall(_FIELDS, _UNKNOWN) if newer else []
        for field in [*fields, *unknown]:
            _add(message, package, text.startswith("oneof ") and field in fields, packed, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name.rpartition(".")[2]: value for name, value in types.items()}


def _add(message, package, is_oneof, packed, name, number, kind):
    form, _, kind = kind.rpartition(" ")
    field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
    if form in ("repeated", "packed", "unpacked", "map"):
        field.label = _FIELD.LABEL_REPEATED
    if is_oneof:
        field.oneof_index = 0
    if form == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_TYPES["string"])
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL)
        value.type, value.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"
    elif form == "enum":
        enum = message.enum_type.add(name=f"{name.title()}Kind")
        for place, word in enumerate(kind.split(",")):
            enum.value.add(name=word, number=place)
        field.type, field.type_name = _FIELD.TYPE_ENUM, f".{package}.{message.name}.{enum.name}"
    elif kind in _TYPES:
        field.type = _TYPES[kind]
        can_pack = field.label == _FIELD.LABEL_REPEATED and kind not in ("string", "bytes")
        if can_pack and packed is not None:
            field.options.packed = packed
        elif form in ("packed", "unpacked"):
            field.options.packed = form == "packed"
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
