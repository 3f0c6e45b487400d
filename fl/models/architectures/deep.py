"""Registry entries of the deep classifiers, which :mod:`fl.models.deep_networks` builds."""

from collections.abc import Callable

from torch import nn

from fl.models.shapes import ImageShape, ModelInfo


def _builder(name: str) -> Callable[[ImageShape, int, float], nn.Module]:
    def build(image_shape: ImageShape, num_classes: int, width: float) -> nn.Module:
        # Imported late: torchvision takes a second and a half to import, and few processes need it.
        from fl.models import deep_networks

        model: nn.Module = getattr(deep_networks, name)(image_shape, num_classes, width)
        return model

    return build


def _more_than_16(image_shape: ImageShape) -> bool:
    """Whether four strides of 2 leave two pixels or more, which BatchNorm needs of one image."""
    return min(image_shape[1:]) > 16


MODELS = tuple(
    ModelInfo(name, "classifier", _builder(builder), _more_than_16, "sides above 16", summary)
    for name, builder, summary in (
        ("efficientnet-v2", "efficientnet_v2", "EfficientNetV2-S: Table 9's global model"),
        ("resnet50", "ResNet50", "ResNet-50: a large classifier of Table 9"),
        ("mobilenet-v2", "mobilenet_v2", "MobileNetV2: a large classifier of Table 9"),
        ("shufflenet-v2", "shufflenet_v2", "ShuffleNetV2: a classifier of HFLDD's Table V"),
    )
)
